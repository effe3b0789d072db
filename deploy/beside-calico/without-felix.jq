# Makes of the DaemonSet calico-node one that runs everything but Felix, on the nodes where Tortie enforces policy:
#
#   kubectl -n kube-system get daemonset calico-node -o json | jq -f without-felix.jq | kubectl apply -f -
#
# Felix's probes go with it, in the forms of Calico before 3.33 (-felix-live) and since (--felix-live).

def name_of_copy: "calico-node-without-felix";
def felix_probes: ["-felix-live", "-felix-ready", "--felix-live", "--felix-ready"];
def without_felix:
  .env = ([.env[]? | select(.name != "CALICO_DISABLE_FELIX")] + [{name: "CALICO_DISABLE_FELIX", value: "true"}])
  | if .livenessProbe.exec then .livenessProbe.exec.command -= felix_probes else del(.livenessProbe) end
  | if .readinessProbe.exec then .readinessProbe.exec.command -= felix_probes else . end;

.metadata = {name: name_of_copy, namespace: .metadata.namespace}
| del(.status)
| .spec.selector.matchLabels = {"k8s-app": name_of_copy}
| .spec.template.metadata.labels["k8s-app"] = name_of_copy
| .spec.template.spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms =
    [{matchExpressions: [{key: "network-policy", operator: "In", values: ["tortie"]}]}]
| .spec.template.spec.containers |= map(if .name == "calico-node" then without_felix else . end)
