# Test of the package in the container that boot.sh boots. The pods are those of examples/demo.

# is NAME EXPECTED FOUND
is() {
    if [ "$2" != "$3" ]; then
        printf '%s: found\n%s\ninstead of\n%s\n' "$1" "$3" "$2"
        journalctl --boot --unit=tortie --output=cat --lines=20
        exit 1
    fi
    echo "$1"
}
unit() { systemctl show --value --property "$1" tortie; }
install() { dpkg --install /opt/tortie.deb >/dev/null 2>&1; }
pod() {
    local interface
    interface=cali$(printf %s "$1.$2" | sha1sum | cut -c1-11)
    ip netns add "$2"
    ip link add "$interface" type veth peer name eth0 netns "$2"
    ip link set "$interface" up
    ip -n "$2" address add "$3/32" dev eth0
    ip -n "$2" link set eth0 up
    ip -n "$2" route add default dev eth0
    ip route add "$3" dev "$interface"
    sysctl -qw "net.ipv4.conf.$interface.proxy_arp=1" "net.ipv4.neigh.$interface.proxy_delay=0" net.ipv4.ip_forward=1
}
reaches() { if ip netns exec "$1" nc -z -w 1 "$2" "$3"; then echo yes; else echo no; fi; }
# Three answers: guest to page, guest to database, API to database.
probe() { echo "$(reaches guest 10.65.1.1 80) $(reaches guest 10.65.1.3 5432) $(reaches api 10.65.1.3 5432)"; }
per_policy="yes no yes"

install
is "after installation it is neither enabled nor started" "disabled inactive" "$(systemctl is-enabled tortie) $(unit ActiveState)"
systemctl start tortie 2>/dev/null || sleep 3
is "without a datastore it fails and is not restarted" "failed 2 0" "$(unit ActiveState) $(unit ExecMainStatus) $(unit NRestarts)"
is "the journal has the reason" "  --datastore <URL>" "$(journalctl --boot --unit=tortie --output=cat | grep '^ *--datastore')"
dpkg --remove tortie >/dev/null 2>&1
is "after removal no unit is failed" running "$(systemctl is-system-running)"

install
echo TORTIE_DATASTORE=file:/opt/none >>/etc/tortie/tortie.env
systemctl start --no-block tortie
sleep 2
is "without its directory it waits and reports so" "activating, waiting for the datastore" "$(unit ActiveState), $(unit StatusText | cut -d';' -f1)"
systemctl stop tortie
printf 'TORTIE_DATASTORE=file:/opt/demo\nFELIX_FELIXHOSTNAME=demo-node\n' >>/etc/tortie/tortie.env
pod shop web 10.65.1.1
pod shop api 10.65.1.2
pod shop db 10.65.1.3
pod visitors guest 10.65.1.4
ip netns exec web nc -lk 80 >/dev/null &
ip netns exec db nc -lk 5432 >/dev/null &
sleep 1
is "without policy all connections succeed" "yes yes yes" "$(probe)"

for parameter in IptablesBackend=NFT NFTablesMode=Enabled BPFEnabled=true; do
    echo "-- $parameter"
    printf '[global]\n%s\n' "$parameter" >/etc/tortie/felix.cfg
    if [ "$parameter" = BPFEnabled=true ]; then
        mkdir -p /etc/systemd/system/tortie.service.d
        cp /usr/share/doc/tortie/examples/ebpf.conf /etc/systemd/system/tortie.service.d/
        systemctl daemon-reload
    fi
    systemctl start tortie
    is "after the start it reports that policy is in force" "active, policy is in force: $per_policy" "$(unit ActiveState), $(unit StatusText): $(probe)"
    log=$(journalctl --output=cat "_SYSTEMD_INVOCATION_ID=$(unit InvocationID)")
    is "no operation is refused" "1 0" "$(echo "$log" | grep -c ' policy is in force ') $(echo "$log" | grep -c ' ERROR ')"
    is "it cannot gain privileges, and seccomp filters its system calls" "1 2" "$(sed -nE 's/^(NoNewPrivs|Seccomp):\s*//p' "/proc/$(unit MainPID)/status" | xargs)"
    is "it cannot write to the system" Read-only "$(nsenter --target "$(unit MainPID)" --mount touch /usr/new 2>&1 | grep -o Read-only)"
    systemctl reload tortie
    sleep 1
    is "it continues after a reload" "active: $per_policy" "$(unit ActiveState): $(probe)"
    systemctl kill --signal=KILL tortie
    is "policy stays in force after SIGKILL" "$per_policy" "$(probe)"
    sleep 3
    is "systemd restarts it" "active, policy is in force: $per_policy" "$(unit ActiveState), $(unit StatusText): $(probe)"
    for _ in 1 2 3 4 5 6 7 8; do systemctl restart tortie; done
    is "it is active after many restarts" active "$(unit ActiveState)"
    systemctl stop tortie
    is "policy stays in force after a stop" "inactive: $per_policy" "$(unit ActiveState): $(probe)"
    tortie cleanup >/dev/null
    is "after the cleanup no chain is left" 0 "$(nft list ruleset | grep -c cali)"
done

systemctl start tortie
dpkg --purge tortie >/dev/null 2>&1
is "policy stays in force after a purge of the running agent" "running: $per_policy" "$(systemctl is-system-running): $(probe)"
is "no files are left" "" "$(find /etc/tortie /var/lib/tortie /var/lib/calico /run/tortie /usr/share/doc/tortie 2>/dev/null)"
