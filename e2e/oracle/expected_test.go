package oracle

// expected is the table of differences: the requests that byre answers otherwise
// than kube-apiserver, each with the reason.
var expected = map[string]string{}
