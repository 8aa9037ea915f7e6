package admission

import (
	"k8s.io/api/core/v1"
	corev1listers "k8s.io/client-go/listers/core/v1"

	"byre/apiserver/storage"
)

// podLister is the Pod lister of the plugins. It reads the server's own store instead of
// keeping decoded Pods. The plugins read Pods seldom: when a namespace's Pod security
// level changes, and when a kubelet makes a request. An informer would keep every Pod of
// the cluster decoded in memory and delay the start until it has synced.
type podLister struct {
	storage.Lister[v1.Pod]
	pods storage.LookupResource[v1.Pod]
}

// Pods implements corev1listers.PodLister.
func (l podLister) Pods(namespace string) corev1listers.PodNamespaceLister {
	return l.pods.Lister(namespace)
}
