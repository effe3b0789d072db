//! `cargo xtask try-kernel`: run a command of the checkout under another kernel, in a virtual
//! machine with the files of this one.
//!
//! The kernel is that of a Debian package, which the caller has unpacked. The machine mounts the
//! root of this one by 9p, read-only, below an overlay in memory. Two virtual ports transmit the
//! output of the command and its status. The kernel's messages are written to a file; errors show
//! its last lines.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use xtask::files::{failed, read};

use super::initramfs::{Initramfs, name, to_load};
use crate::needs;
use crate::shell::{root, run};

const USAGE: &str = "\
cargo xtask try-kernel [OPTIONS] DIR -- COMMAND…

Runs COMMAND, from the root of the checkout and as root, under the kernel of an unpacked Debian package, and exits with its
status. The virtual machine has the files of this machine, and writes into memory. The kernel loads its modules on demand.

  apt-get download linux-image-6.1.0-51-amd64     any with a number; from another release of Debian, with its
                                                  sources in a file: -o Dir::Etc::sourcelist=FILE
  dpkg -x linux-image-*.deb DIR                   depmod also writes a list of the modules to DIR
  cargo xtask try-kernel DIR -- uname -a

  --accel kvm|tcg  run it by the processor (kvm) or by emulation (tcg), which takes 10 to 20 times as long; the default is
                   the one that works
  --seconds N      time limit (1800)
  --memory MIB     size of its memory, which also holds written files (4096)
  --keep DIR       keep the files that are written there

The variables PATH, HOME, LANG, LC_ALL, CARGO_HOME, CARGO_TARGET_DIR, RUSTUP_HOME, RUSTUP_TOOLCHAIN, and those that begin
with RUST_, TORTIE_ or PROPTEST_ keep their values.";

/// Modules needed to access the files.
const MODULES: &[&str] = &["virtio_pci", "virtio_console", "9pnet_virtio", "9p", "overlay"];
/// Time limit until a kernel's first process runs with hardware virtualization, in seconds.
const PROBE_SECONDS: u32 = 20;
/// Line with which the first process reports that the kernel runs.
const RUNS: &str = "try-kernel: ";
/// Number of the kernel's last messages that an error shows.
const LAST_LINES: usize = 40;

/// Runs the command, and returns its status.
pub(crate) fn try_kernel(args: &[String]) -> Result<u8, String> {
    if args.first().is_some_and(|arg| arg == "--help" || arg == "-h") {
        println!("{USAGE}");
        return Ok(0);
    }
    let arguments = TryKernelArgs::parse(args)?;
    if !cfg!(target_arch = "x86_64") {
        return Err("try-kernel needs x86-64".into());
    }
    needs::to_try_kernels()?;
    let kernel = Kernel::of(&arguments.package)?;
    let folder = root().join("target/try-kernel").join(std::process::id().to_string());
    fs::create_dir_all(&folder).map_err(failed(&folder))?;
    let machine = Machine { kernel, folder, memory: arguments.memory };
    let status = machine.run(&arguments)?;
    // After a failure, its messages may show the reason.
    if status == 0 {
        fs::remove_dir_all(&machine.folder).map_err(failed(&machine.folder))?;
    }
    Ok(status)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Accelerator {
    Kvm,
    Tcg,
}

/// The arguments.
#[derive(Debug, PartialEq, Eq)]
struct TryKernelArgs {
    package: PathBuf,
    command: Vec<String>,
    accelerator: Option<Accelerator>,
    seconds: u32,
    memory: u32,
    keep: Option<PathBuf>,
}

impl TryKernelArgs {
    fn parse(args: &[String]) -> Result<Self, String> {
        let usage = "cargo xtask try-kernel [OPTIONS] DIR -- COMMAND… (see --help)";
        let (options, command) = match args.iter().position(|arg| arg == "--") {
            Some(end) => (&args[..end], args[end + 1..].to_vec()),
            None => return Err(usage.into()),
        };
        let (mut package, mut accelerator, mut seconds, mut memory, mut keep) = (None, None, 1800, 4096, None);
        let mut options = options.iter();
        while let Some(option) = options.next() {
            let mut value = || options.next().ok_or_else(|| format!("{option} takes a value"));
            match option.as_str() {
                "--accel" => {
                    accelerator = Some(match value()?.as_str() {
                        "kvm" => Accelerator::Kvm,
                        "tcg" => Accelerator::Tcg,
                        other => return Err(format!("--accel takes kvm or tcg, not {other}")),
                    });
                }
                "--seconds" => seconds = positive(option, value()?)?,
                "--memory" => memory = positive(option, value()?)?,
                "--keep" => keep = Some(PathBuf::from(value()?)),
                other if other.starts_with('-') => return Err(format!("unknown option {other}; {usage}")),
                folder if package.is_none() => package = Some(PathBuf::from(folder)),
                other => return Err(format!("{other} is one argument too many; {usage}")),
            }
        }
        match package {
            Some(package) if !command.is_empty() => Ok(Self { package, command, accelerator, seconds, memory, keep }),
            _ => Err(usage.into()),
        }
    }
}

fn positive(option: &str, value: &str) -> Result<u32, String> {
    let number = value.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| format!("{option} takes a positive number, not {value}"))
}

/// The kernel of a package.
struct Kernel {
    image: PathBuf,
    release: String,
    modules: PathBuf,
}

impl Kernel {
    fn of(package: &Path) -> Result<Self, String> {
        let package = fs::canonicalize(package).map_err(failed(package))?;
        let boot = package.join("boot");
        let files = fs::read_dir(&boot).map_err(failed(&boot))?;
        let names = files.flatten().map(|file| file.file_name().to_string_lossy().into_owned());
        let releases: Vec<String> = names.filter_map(|name| Some(name.strip_prefix("vmlinuz-")?.to_owned())).collect();
        let [release] = &releases[..] else {
            return Err(format!("{}: there must be one vmlinuz-*, not {}", boot.display(), releases.len()));
        };
        // Since Debian 13 they are below usr.
        let bases = [package.join("usr"), package.clone()];
        let base = bases.iter().find(|base| base.join("lib/modules").join(release).is_dir());
        let base = base.ok_or_else(|| format!("{}: there is no lib/modules/{release}", package.display()))?;
        let modules = base.join("lib/modules").join(release);
        if !modules.join("modules.dep").is_file() {
            let mut depmod = sbin("depmod");
            run(depmod.arg("--basedir").arg(base).arg(release))?;
        }
        Ok(Self { image: boot.join(format!("vmlinuz-{release}")), release: release.clone(), modules })
    }

    /// Returns the modules to be loaded first, with their contents.
    fn load(&self) -> Result<Vec<(String, Vec<u8>)>, String> {
        let list = |name| read(&self.modules.join(name));
        let files = to_load(MODULES, &list("modules.dep")?, &list("modules.builtin")?)
            .map_err(|error| format!("{}: {error}", self.modules.display()))?;
        files.iter().map(|file| Ok((name(file), unpacked(&self.modules.join(file))?))).collect()
    }
}

/// Returns the contents of a file, which may be compressed.
fn unpacked(path: &Path) -> Result<Vec<u8>, String> {
    let program = match path.extension().and_then(|extension| extension.to_str()) {
        Some("xz") => "xz",
        Some("zst") => "zstd",
        _ => return fs::read(path).map_err(failed(path)),
    };
    let mut unpack = Command::new(program);
    let output = unpack.args(["--decompress", "--stdout"]).arg(path).stderr(Stdio::inherit()).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() { Ok(output.stdout) } else { Err(format!("{program} cannot read {}", path.display())) }
}

/// A virtual machine with its kernel, and the folder of its files.
struct Machine {
    kernel: Kernel,
    folder: PathBuf,
    memory: u32,
}

impl Machine {
    fn run(&self, arguments: &TryKernelArgs) -> Result<u8, String> {
        let keep = arguments.keep.as_deref().map(create_folder).transpose()?;
        let initramfs = self.initramfs(&arguments.command, keep.as_deref())?;
        let path = self.folder.join("initramfs");
        fs::write(&path, initramfs).map_err(failed(&path))?;
        let accelerator = match arguments.accelerator {
            Some(accelerator) => accelerator,
            None if self.runs_by_processor()? => Accelerator::Kvm,
            None => Accelerator::Tcg,
        };
        let how = if accelerator == Accelerator::Kvm { "by the processor (KVM)" } else { "emulated (TCG)" };
        eprintln!("xtask: booting Linux {}, {how}; console: {}", self.kernel.release, self.console().display());

        let status = self.folder.join("status");
        let mut qemu = self.qemu(accelerator, arguments.seconds, "console", "");
        qemu.args(["-chardev", "stdio,id=printed,signal=off", "-chardev"]).arg(chardev("status", &status));
        qemu.args(["-device", "virtio-serial-pci", "-device", "virtserialport,nr=1,chardev=printed"]);
        qemu.args(["-device", "virtserialport,nr=2,chardev=status", "-virtfs"]).arg(share(
            "root",
            Path::new("/"),
            true,
        ));
        if let Some(keep) = &keep {
            qemu.arg("-virtfs").arg(share("keep", keep, false));
        }
        // A port is closed once its input has ended, so the input is kept open.
        let mut child = qemu.stdin(Stdio::piped()).spawn().map_err(|error| format!("timeout: {error}"))?;
        let open = child.stdin.take();
        let ended = child.wait().map_err(|error| format!("qemu: {error}"))?;
        drop(open);
        let output_text = read(&status).unwrap_or_default();
        if let Ok(status) = output_text.trim().parse() {
            return Ok(status);
        }
        let outcome = match ended.code() {
            // Exit codes of timeout.
            Some(124 | 137) => format!("has not ended after {} s", arguments.seconds),
            Some(0) => "has ended before the command".to_owned(),
            _ => format!("cannot be run: {ended}"),
        };
        let messages = fs::read(self.console()).unwrap_or_default();
        let last = last_lines(&String::from_utf8_lossy(&messages), LAST_LINES);
        Err(format!(
            "Linux {} {outcome}; its last messages, of {}:\n{last}",
            self.kernel.release,
            self.console().display()
        ))
    }

    fn console(&self) -> PathBuf {
        self.folder.join("console")
    }

    /// Reports whether hardware virtualization works. Within a virtual machine it may seem
    /// available, and then hang.
    fn runs_by_processor(&self) -> Result<bool, String> {
        if fs::File::options().read(true).write(true).open("/dev/kvm").is_err() {
            return Ok(false);
        }
        let mut probe = self.qemu(Accelerator::Kvm, PROBE_SECONDS, "probe", "try-kernel.probe");
        let probe = probe.stdin(Stdio::null()).output().map_err(|error| format!("timeout: {error}"))?;
        let messages = fs::read(self.folder.join("probe")).unwrap_or_default();
        Ok(probe.status.success() && String::from_utf8_lossy(&messages).contains(RUNS))
    }

    /// Returns the emulator's command with the devices of every machine; the kernel's messages go
    /// to a file of this name.
    fn qemu(&self, accelerator: Accelerator, seconds: u32, console: &str, parameters: &str) -> Command {
        // It ends even if this process has been killed. In the foreground, Ctrl-C still stops it.
        let mut qemu = Command::new("timeout");
        qemu.args(["--foreground", "--kill-after=5", &seconds.to_string(), "qemu-system-x86_64"]);
        qemu.args(match accelerator {
            Accelerator::Kvm => ["-accel", "kvm", "-cpu", "host"],
            Accelerator::Tcg => ["-accel", "tcg,thread=multi", "-cpu", "max"],
        });
        let processors = std::thread::available_parallelism().map_or(1, usize::from).to_string();
        qemu.args(["-smp", &processors, "-m", &self.memory.to_string()]);
        qemu.args(["-no-user-config", "-nodefaults", "-no-reboot", "-display", "none", "-monitor", "none"]);
        qemu.arg("-chardev").arg(chardev("console", &self.folder.join(console))).args(["-serial", "chardev:console"]);
        qemu.arg("-kernel").arg(&self.kernel.image).arg("-initrd").arg(self.folder.join("initramfs"));
        // Failures end the machine. Mitigations of leaks make emulation much slower; but
        // `mitigations=off` would also make the verifier of eBPF programs accept more.
        let always = "console=ttyS0 panic=-1 oops=panic nopti spectre_v2=off random.trust_cpu=on";
        qemu.args(["-append", &format!("{always} {parameters}")]);
        qemu
    }

    fn initramfs(&self, command: &[String], keep: Option<&Path>) -> Result<Vec<u8>, String> {
        let mut files = Initramfs::default();
        files.folder("bin")?;
        files.file("bin/busybox", &busybox()?)?;
        files.folder("modules")?;
        for (index, (name, content)) in self.kernel.load()?.iter().enumerate() {
            files.file(&format!("modules/{index:03}-{name}.ko"), content)?;
        }
        let modules = text(&self.kernel.modules)?;
        let (folder, keep) = (root(), keep.map_or(Ok(""), text)?);
        let folder = text(&folder)?;
        let settings = [("MODULES", modules), ("FOLDER", folder), ("KEEP", keep)];
        let settings = settings.map(|(name, value)| format!("{name}={}\n", quoted(value)));
        files.file("settings", settings.concat().as_bytes())?;
        files.file("command", script(folder, std::env::vars(), command).as_bytes())?;
        files.file("start", include_bytes!("start.sh"))?;
        files.file("init", include_bytes!("init.sh"))?;
        files.finish()
    }
}

/// Returns busybox, a program without dependencies.
fn busybox() -> Result<Vec<u8>, String> {
    let folders = ["/usr/bin", "/bin"].map(|folder| Path::new(folder).join("busybox"));
    let path = folders.iter().find(|path| path.is_file()).ok_or("please install busybox-static")?;
    // It lists no libraries for a static program.
    let libraries = Command::new("ldd").arg(path).output().map_err(|error| format!("ldd: {error}"))?;
    if String::from_utf8_lossy(&libraries.stdout).contains("=>") {
        return Err(format!("{} needs libraries; please install busybox-static in place of busybox", path.display()));
    }
    fs::read(path).map_err(failed(path))
}

/// Returns a command for a program that may be outside an ordinary user's search path.
fn sbin(program: &str) -> Command {
    let path =
        ["/usr/sbin", "/sbin"].map(|folder| Path::new(folder).join(program)).into_iter().find(|path| path.is_file());
    Command::new(path.unwrap_or_else(|| program.into()))
}

/// Creates a folder if it is missing.
fn create_folder(folder: &Path) -> Result<PathBuf, String> {
    fs::create_dir_all(folder).map_err(failed(folder))?;
    fs::canonicalize(folder).map_err(failed(folder))
}

fn text(path: &Path) -> Result<&str, String> {
    path.to_str().ok_or_else(|| format!("{} is not UTF-8", path.display()))
}

/// Returns a character device whose output goes to a file.
fn chardev(id: &str, path: &Path) -> String {
    format!("file,id={id},path={}", escaped(path))
}

/// Returns a folder of this machine that the virtual machine can mount.
fn share(tag: &str, folder: &Path, read_only: bool) -> String {
    let how = if read_only { "readonly=on" } else { "readonly=off" };
    format!("local,path={},mount_tag={tag},security_model=none,multidevs=remap,{how}", escaped(folder))
}

/// Escapes commas, which separate options of qemu.
fn escaped(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}

/// Returns a script that runs a command in a folder, with the relevant ones of these variables.
fn script(folder: &str, variables: impl Iterator<Item = (String, String)>, command: &[String]) -> String {
    let mut variables: Vec<String> = variables
        .filter(|(name, _)| matters(name))
        .map(|(name, value)| format!("export {name}={}\n", quoted(&value)))
        .collect();
    variables.sort();
    let command: Vec<String> = command.iter().map(|word| quoted(word)).collect();
    format!("cd {} || exit\n{}exec {}\n", quoted(folder), variables.concat(), command.join(" "))
}

fn matters(variable: &str) -> bool {
    const NAMES: &[&str] =
        &["PATH", "HOME", "LANG", "LC_ALL", "CARGO_HOME", "CARGO_TARGET_DIR", "RUSTUP_HOME", "RUSTUP_TOOLCHAIN"];
    let is_name = variable.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    is_name
        && (NAMES.contains(&variable)
            || ["RUST_", "TORTIE_", "PROPTEST_"].iter().any(|prefix| variable.starts_with(prefix)))
}

/// Quotes a word for a shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Returns the last lines of messages, without control characters for terminals.
fn last_lines(messages: &str, count: usize) -> String {
    let lines: Vec<&str> = messages.lines().map(|line| line.trim_end_matches('\r')).collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shell::output;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn options_stand_before_the_command_which_may_have_the_same() {
        let arguments = TryKernelArgs::parse(&words("--seconds 60 k61 --accel tcg -- tests -- --seconds 1")).unwrap();
        let expected = TryKernelArgs {
            package: "k61".into(),
            command: words("tests -- --seconds 1"),
            accelerator: Some(Accelerator::Tcg),
            seconds: 60,
            memory: 4096,
            keep: None,
        };
        assert_eq!(arguments, expected);
        let refused = |args: &str| TryKernelArgs::parse(&words(args)).unwrap_err();
        assert_eq!(refused("k61 --seconds 0 -- true"), "--seconds takes a positive number, not 0");
        assert_eq!(refused("k61 --accel hvf -- true"), "--accel takes kvm or tcg, not hvf");
        assert_eq!(refused("k61 --keep -- true"), "--keep takes a value");
        assert!(refused("k61 k612 -- true").starts_with("k612 is one argument too many"));
        for incomplete in ["k61", "k61 --", "-- true", "k61 true"] {
            assert!(refused(incomplete).starts_with("cargo xtask try-kernel"), "{incomplete}");
        }
    }

    #[test]
    fn a_command_is_run_word_by_word_with_the_variables_that_matter() {
        let here = [("TORTIE_X", "it's"), ("CARGO_PKG_NAME", "xtask"), ("RUST_LOG x", "1"), ("RUST_LOG", "a b")];
        let here = here.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let script = script("/", here.into_iter(), &words("printf %s\\n $HOME it's"));
        let expected = "cd '/' || exit\nexport RUST_LOG='a b'\nexport TORTIE_X='it'\\''s'\nexec 'printf' '%s\\n' '$HOME' 'it'\\''s'\n";
        assert_eq!(script, expected);
        let printed = output(Command::new("sh").args(["-c", &script])).unwrap();
        assert_eq!(printed, "$HOME\nit's\n");
    }

    #[test]
    fn last_lines_returns_the_end_of_the_log() {
        assert_eq!(last_lines("a\r\nb\r\nc\r\n", 2), "b\nc");
        assert_eq!(last_lines("a\n", 2), "a");
        assert_eq!(last_lines("", 2), "");
    }
}
