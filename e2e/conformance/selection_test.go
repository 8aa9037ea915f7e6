package conformance

// least is how many tests must pass: as many as are selected of the tests of 1.37.2.
const least = 218

// needContainers are regular expressions of the names of the tests that byre with simulated nodes
// cannot pass.
var needContainers = []string{
	// They read what a container prints, or what it finds in its environment and its volumes.
	`\[sig-storage\] (Downward API volume|EmptyDir|Projected|Subpath|(ConfigMap|Secrets) .* volume)`,
	`\[sig-node\] (Containers|Downward API|ImageVolume|Variable Expansion|(ConfigMap|Secrets) should be consumable)`,
	`\[sig-node\] Pods should contain environment variables`,
	`\[sig-auth\] (ServiceAccounts should mount|Projected PodCertificate|.*ClusterTrustBundleProjection\] should)`,
	`ServiceAccountIssuerDiscovery`, // a container reads the documents

	// They observe what a kubelet does to containers: it starts, probes, resizes, restarts and ends
	// them, refuses a Pod, or writes status.observedGeneration.
	`\[sig-node\] (Container |Ephemeral Containers|InitContainer|Kubelet|Pod InPlace|PreStop|Probing|Security Context|Sysctls .* support)`,
	`\[sig-node\] Pods should allow activeDeadlineSeconds|Pod Generation (issue|pod generation)`,
	`StatefulSet .* Should recreate evicted statefulset`,

	// An image that does not exist keeps Pods from getting ready.
	`Deployment deployment should support proportional scaling|Daemon set should rollback`,

	// They execute a command in a container, or read its log.
	`\[sig-node\] Pods should support|Kubectl logs|Kubectl expose`,
	`StatefulSet .* (rolling updates and roll backs|Scaling should happen|Burst scaling)`, // to fail a probe

	// Containers fail, and the Job does what its failure policy says.
	`Job should (allow to use|execute all indexes|mark indexes|run a job to|terminate job)`,
	`Job with successPolicy succeeded(Count|Indexes)`,

	// They connect to a container: to a Pod, to a Service, or to a webhook or an API server in a Pod.
	`\[sig-network\] (DNS|HostPort|Networking|Proxy version|EndpointSlice should support a Service)`,
	`\[sig-network\] Services .*(affinity|change the type|functioning|serve )`,
	`AdmissionWebhook .*(listing|patching|able to|deny|honor|mutate|unconditionally)`,
	`ConversionWebhook|CustomResourceFieldSelectors|Sample API Server`,
	`Guestbook|Update Demo|should serve a basic image`,
}
