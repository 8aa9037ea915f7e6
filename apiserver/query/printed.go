package query

import (
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"byre/apiserver/storage/transcode"
)

// printedColumns are the columns that kubectl get prints of a built-in resource, where they are fields under
// another name: "name=path", of a text, or with # after the name of an integer.
var printedColumns = map[string]string{
	"pods":                                 "phase=status.phase ip=status.podIP node=spec.nodeName nominated_node=status.nominatedNodeName",
	"nodes":                                "unschedulable?=spec.unschedulable kubelet_version=status.nodeInfo.kubeletVersion os_image=status.nodeInfo.osImage kernel_version=status.nodeInfo.kernelVersion container_runtime=status.nodeInfo.containerRuntimeVersion",
	"namespaces":                           "phase=status.phase",
	"services":                             "type=spec.type cluster_ip=spec.clusterIP external_name=spec.externalName",
	"persistentvolumes":                    "phase=status.phase storage_class=spec.storageClassName reclaim_policy=spec.persistentVolumeReclaimPolicy",
	"persistentvolumeclaims":               "phase=status.phase volume=spec.volumeName storage_class=spec.storageClassName",
	"deployments.apps":                     "replicas#=spec.replicas ready#=status.readyReplicas up_to_date#=status.updatedReplicas available#=status.availableReplicas",
	"replicasets.apps":                     "desired#=spec.replicas current#=status.replicas ready#=status.readyReplicas",
	"statefulsets.apps":                    "replicas#=spec.replicas ready#=status.readyReplicas",
	"daemonsets.apps":                      "desired#=status.desiredNumberScheduled current#=status.currentNumberScheduled ready#=status.numberReady up_to_date#=status.updatedNumberScheduled available#=status.numberAvailable",
	"jobs.batch":                           "completions#=spec.completions active#=status.active succeeded#=status.succeeded failed#=status.failed",
	"cronjobs.batch":                       "schedule=spec.schedule timezone=spec.timeZone suspend?=spec.suspend",
	"horizontalpodautoscalers.autoscaling": "min_pods#=spec.minReplicas max_pods#=spec.maxReplicas replicas#=status.currentReplicas",
	"poddisruptionbudgets.policy":          "min_available=spec.minAvailable max_unavailable=spec.maxUnavailable allowed_disruptions#=status.disruptionsAllowed",
	"ingresses.networking.k8s.io":          "class=spec.ingressClassName",
	"leases.coordination.k8s.io":           "holder=spec.holderIdentity",
}

// printed returns the columns that kubectl get prints of a built-in resource.
func printed(r schema.GroupResource) (columns []Column) {
	for field := range strings.FieldsSeq(printedColumns[r.String()]) {
		name, path, _ := strings.Cut(field, "=")
		of := Text
		switch name[len(name)-1] {
		case '#':
			of = Integer
		case '?':
			of = Boolean
		}
		columns = append(columns, NewColumn(strings.TrimRight(name, "#?"), of, "", strings.Split(path, ".")...))
	}
	if r.String() == "pods" {
		containers := []string{"status", "containerStatuses"}
		columns = append(columns,
			Column{"ready", Text, "How many containers are ready, of how many.", containers, func(statuses []byte) any {
				all, ready := countContainers(statuses, "ready", func(value []byte) int64 {
					if string(value) == "true" {
						return 1
					}
					return 0
				})
				return strconv.FormatInt(ready, 10) + "/" + strconv.FormatInt(all, 10)
			}},
			Column{"restarts", Integer, "How often containers were started again.", containers, func(statuses []byte) any {
				_, restarts := countContainers(statuses, "restartCount", func(value []byte) int64 {
					n, _ := integer(value).(int64)
					return n
				})
				return restarts
			}})
	}
	return columns
}

// countContainers returns the number of container statuses, and the sum of what a member of each counts.
func countContainers(statuses []byte, member string, count func([]byte) int64) (all, sum int64) {
	for status := range transcode.Elements(statuses) {
		all++
		for key, value := range transcode.Members(status) {
			if key == member {
				sum += count(value)
			}
		}
	}
	return all, sum
}
