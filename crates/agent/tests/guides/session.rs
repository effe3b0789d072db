//! A shell on a separate machine, as far as a page can observe.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tortie_lab::netns::Namespace;

use super::markdown::{Step, is_as_shown, steps};

/// Time limit of a command, and of its repetitions.
const PATIENCE: Duration = Duration::from_secs(60);

/// Environment of the shell: a machine called `worker-1` with separate `/etc`, `/run`, `/var/lib`
/// and BPF file system, so that a page can name default paths.
const MACHINE: &str = r#"set -e
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /var/lib
mkdir -p /run/lock /run/etc/upper /run/etc/work
mount -t overlay overlay -o lowerdir=/etc,upperdir=/run/etc/upper,workdir=/run/etc/work /etc
mount -t bpf bpf /sys/fs/bpf 2>/dev/null || true
hostname worker-1
exec bash --norc --noprofile"#;

/// A shell in a namespace. Its child processes end with it.
pub(crate) struct Session {
    shell: Child,
    input: ChildStdin,
    folder: TempDir,
    /// Number of commands so far.
    given: usize,
}

impl Session {
    /// Starts a shell in a directory with the repository's `examples/`, and with `tortie` in its
    /// path.
    pub(crate) fn start(machine: &Namespace) -> Self {
        let folder = TempDir::new().unwrap();
        let work = folder.path().join("work");
        fs::create_dir(&work).unwrap();
        std::os::unix::fs::symlink(root().join("examples"), work.join("examples")).unwrap();
        let programs = Path::new(env!("CARGO_BIN_EXE_tortie")).parent().unwrap();
        let path = std::env::var("PATH").unwrap();
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private"])
            .args(["--", "bash", "-c", MACHINE])
            .env_clear()
            .env("PATH", format!("{}:{path}:/usr/sbin:/sbin", programs.display()))
            .envs([("HOME", "/root"), ("LANG", "C.UTF-8"), ("TERM", "dumb")])
            .current_dir(work)
            .stdin(Stdio::piped());
        let mut shell = machine.spawn(&mut command).unwrap();
        let input = shell.stdin.take().unwrap();
        Self { shell, input, folder, given: 0 }
    }

    /// Runs the commands of a page of the repository, and compares their output with the page.
    pub(crate) fn follow(&mut self, page: &str) {
        let text = fs::read_to_string(root().join(page)).unwrap();
        if let Err(difference) = self.follow_text(page, &text) {
            panic!("{difference}");
        }
    }

    /// Runs the commands of a text. Returns the first difference, with its place.
    pub(crate) fn follow_text(&mut self, page: &str, text: &str) -> Result<(), String> {
        let steps = steps(text).map_err(|error| format!("{page}: {error}"))?;
        if steps.is_empty() {
            return Err(format!("{page}: there is nothing to follow"));
        }
        steps.iter().try_for_each(|step| self.follow_step(step).map_err(|why| format!("{page}:{}: {why}", step.line)))
    }

    fn follow_step(&mut self, step: &Step) -> Result<(), String> {
        let end = Instant::now() + PATIENCE;
        let command = &step.command;
        loop {
            let (is_alive, printed) = self.run(command, step.must_succeed);
            if !is_alive {
                return Err(format!("a command failed, or took too long:\n{command}\n{printed}"));
            }
            match &step.output {
                Some(shown) if !is_as_shown(shown, &printed) => {
                    if !step.is_repeated || Instant::now() > end {
                        return Err(format!("{command}\n--- the page says\n{shown}--- it is\n{printed}"));
                    }
                    thread::sleep(Duration::from_millis(50));
                }
                _ => return Ok(()),
            }
        }
    }

    /// Runs lines in the shell. Returns whether the shell still runs afterwards, and the output.
    fn run(&mut self, command: &str, must_succeed: bool) -> (bool, String) {
        self.given += 1;
        let file = |kind: &str| self.folder.path().join(format!("{}.{kind}", self.given));
        let (script, output, status) = (file("sh"), file("output"), file("status"));
        fs::write(&script, command).unwrap();
        let strict = if must_succeed { "set -e" } else { "set +e" };
        let [script, to] = [&script, &output].map(|path| path.display().to_string());
        let line = format!("{strict}; . {script} >{to} 2>&1 </dev/null; : >{}\n", status.display());
        self.input.write_all(line.as_bytes()).unwrap();
        let done = self.wait_for(&status);
        (done, String::from_utf8_lossy(&fs::read(output).unwrap_or_default()).into_owned())
    }

    /// Waits for the file that marks the end of a command.
    fn wait_for(&mut self, file: &Path) -> bool {
        let end = Instant::now() + PATIENCE;
        while !file.exists() {
            if self.shell.try_wait().unwrap().is_some() || Instant::now() > end {
                return false;
            }
            thread::sleep(Duration::from_millis(5));
        }
        true
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // The shell is the first process of its PID namespace, and all others end with it.
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}

/// Returns the root directory of the repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}
