# What is tried on the machine that boot.sh boots. The pods are those of examples/demo.

# is WHAT EXPECTED FOUND
is() {
    if [ "$2" != "$3" ]; then
        printf '%s: found\n%s\nand not\n%s\n' "$1" "$3" "$2"
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
# Does a guest see the page, or reach the database; does the API reach that?
probe() { echo "$(reaches guest 10.65.1.1 80) $(reaches guest 10.65.1.3 5432) $(reaches api 10.65.1.3 5432)"; }
as_policy_says="yes no yes"

install
is "installed, it is neither enabled nor started" "disabled inactive" "$(systemctl is-enabled tortie) $(unit ActiveState)"
systemctl start tortie 2>/dev/null || sleep 3
is "not told where its cluster is, it fails, and is not started again" "failed 2 0" "$(unit ActiveState) $(unit ExecMainStatus) $(unit NRestarts)"
is "the journal says why" "  --datastore <URL>" "$(journalctl --boot --unit=tortie --output=cat | grep '^ *--datastore')"
dpkg --remove tortie >/dev/null 2>&1
is "removed, it leaves no unit that has failed" running "$(systemctl is-system-running)"

install
echo TORTIE_DATASTORE=file:/opt/none >>/etc/tortie/tortie.env
systemctl start --no-block tortie
sleep 2
is "without its directory it waits, and says so" "activating, waiting for the datastore" "$(unit ActiveState), $(unit StatusText | cut -d';' -f1)"
systemctl stop tortie
printf 'TORTIE_DATASTORE=file:/opt/demo\nFELIX_FELIXHOSTNAME=demo-node\n' >>/etc/tortie/tortie.env
pod shop web 10.65.1.1
pod shop api 10.65.1.2
pod shop db 10.65.1.3
pod visitors guest 10.65.1.4
ip netns exec web nc -lk 80 >/dev/null &
ip netns exec db nc -lk 5432 >/dev/null &
sleep 1
is "without policy everything is reached" "yes yes yes" "$(probe)"

for parameter in IptablesBackend=NFT NFTablesMode=Enabled BPFEnabled=true; do
    echo "-- $parameter"
    printf '[global]\n%s\n' "$parameter" >/etc/tortie/felix.cfg
    if [ "$parameter" = BPFEnabled=true ]; then
        mkdir -p /etc/systemd/system/tortie.service.d
        cp /usr/share/doc/tortie/examples/ebpf.conf /etc/systemd/system/tortie.service.d/
        systemctl daemon-reload
    fi
    systemctl start tortie
    is "started, it says that policy is in force" "active, policy is in force: $as_policy_says" "$(unit ActiveState), $(unit StatusText): $(probe)"
    log=$(journalctl --output=cat "_SYSTEMD_INVOCATION_ID=$(unit InvocationID)")
    is "nothing that it does is refused" "1 0" "$(echo "$log" | grep -c ' policy is in force ') $(echo "$log" | grep -c ' ERROR ')"
    is "it may get no more rights, and has its calls filtered" "1 2" "$(sed -nE 's/^(NoNewPrivs|Seccomp):\s*//p' "/proc/$(unit MainPID)/status" | xargs)"
    is "it cannot write into the system" Read-only "$(nsenter --target "$(unit MainPID)" --mount touch /usr/new 2>&1 | grep -o Read-only)"
    systemctl reload tortie
    sleep 1
    is "reloaded, it goes on" "active: $as_policy_says" "$(unit ActiveState): $(probe)"
    systemctl kill --signal=KILL tortie
    is "killed, it leaves policy in force" "$as_policy_says" "$(probe)"
    sleep 3
    is "it is started again" "active, policy is in force: $as_policy_says" "$(unit ActiveState), $(unit StatusText): $(probe)"
    for _ in 1 2 3 4 5 6 7 8; do systemctl restart tortie; done
    is "restarted often, it is not given up" active "$(unit ActiveState)"
    systemctl stop tortie
    is "stopped, it leaves policy in force" "inactive: $as_policy_says" "$(unit ActiveState): $(probe)"
    tortie cleanup >/dev/null
    is "cleaned up, nothing is in force" 0 "$(nft list ruleset | grep -c cali)"
done

systemctl start tortie
dpkg --purge tortie >/dev/null 2>&1
is "purged while it runs, it leaves policy in force" "running: $as_policy_says" "$(systemctl is-system-running): $(probe)"
is "and no files" "" "$(find /etc/tortie /var/lib/tortie /var/lib/calico /run/tortie /usr/share/doc/tortie 2>/dev/null)"
