package oracle

// expected is the table of differences: the requests that byre answers otherwise
// than kube-apiserver, each with the reason.
var expected = map[string]string{
	"at start /.well-known/openid-configuration": "the key that byre makes for itself is elliptic",
	"at start /": "three health checks have no equivalent; see onlyStock",
	"at start /apis/networking.k8s.io/v1/servicecidrs":   "byre has the range ready before anybody asks, and writes it itself",
	"at start /api/v1/namespaces/kube-system/configmaps": "byre has a CA for clients and a front proxy from the start; its stock twin was given none",
	"get at no revision":                              "a client's mistake is a 400; upstream's store lets it through as a 500",
	"in a built-in group: /apis/networking.k8s.io/v7": "discovery and its documents agree; upstream lists a version that it then does not know",
	"OpenAPI v3 of apps":                              "the answer depends on Accept-Encoding too, and says so",
	"OpenAPI v3 of core":                              "the answer depends on Accept-Encoding too, and says so",
}
