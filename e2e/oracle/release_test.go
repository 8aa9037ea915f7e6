package oracle

import "net/http"

// ofRelease are requests that 1.36 and 1.37 answer differently, by the gates that 1.37 turns on
// and by the checks that it adds. With -emulated they show that an older release is emulated.
func ofRelease() []request {
	const (
		base = "/api/v1/namespaces/release"
		pods = base + "/pods?dryRun=All"
	)
	post := func(name, path, body string) request {
		return request{name: "release: " + name, method: http.MethodPost, path: path, body: body}
	}
	return []request{
		post("namespace", "/api/v1/namespaces",
			`{"metadata":{"name":"release","labels":{"pod-security.kubernetes.io/enforce":"baseline"}}}`),
		post("a sysctl that the baseline allows", pods, // PodSecurity
			`{"metadata":{"name":"p"},"spec":{"containers":[{"name":"c","image":"i"}],"securityContext":{"sysctls":[{"name":"net.ipv4.tcp_slow_start_after_idle","value":"1"}]}}}`),
		post("a bundle of certificates as a volume", pods, // ClusterTrustBundleProjection
			`{"metadata":{"name":"p"},"spec":{"containers":[{"name":"c","image":"i"}],"volumes":[{"name":"v","projected":{"sources":[{"clusterTrustBundle":{"name":"b","path":"f"}}]}}]}}`),
		post("a certificate as a volume", pods, // PodCertificateRequest
			`{"metadata":{"name":"p"},"spec":{"containers":[{"name":"c","image":"i"}],"volumes":[{"name":"v","projected":{"sources":[{"podCertificate":{"signerName":"example.com/s","keyType":"ED25519","credentialBundlePath":"f"}}]}}]}}`),
		post("no replicas", "/apis/autoscaling/v2/namespaces/release/horizontalpodautoscalers?dryRun=All", // HPAScaleToZero
			`{"metadata":{"name":"h"},"spec":{"minReplicas":0,"maxReplicas":1,"scaleTargetRef":{"apiVersion":"apps/v1","kind":"Deployment","name":"d"},"metrics":[{"type":"External","external":{"metric":{"name":"m"},"target":{"type":"Value","value":"1"}}}]}}`),
		// MaxUnavailableStatefulSet
		post("how many replicas are unavailable", "/apis/apps/v1/namespaces/release/statefulsets?dryRun=All",
			`{"metadata":{"name":"s"},"spec":{"serviceName":"s","selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i"}]}},"updateStrategy":{"type":"RollingUpdate","rollingUpdate":{"maxUnavailable":2}}}}`),
		post("a ConfigMap", base+"/configmaps", configMap("c", "")),
		{
			// AllowUnsafeMalformedObjectDeletion
			name: "release: delete what can be read as if it could not", method: http.MethodDelete,
			path: base + "/configmaps/c", body: `{"ignoreStoreReadErrorWithClusterBreakingPotential":true}`,
		},
		{
			name: "release: streaming list, zipped", // WatchListCompression
			path: base +
				"/configmaps?watch=true&timeoutSeconds=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true",
			// Each server zips its own revisions: the headers are compared.
			header: http.Header{"Accept-Encoding": {"gzip"}}, normalize: func(any) any { return nil },
		},
	}
}
