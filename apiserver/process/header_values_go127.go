//go:build go1.27

package process

import "net/http"

// maxHeaderValueCount is upstream's (k8s.io/apiserver/pkg/server/header_value_count_go127.go).
// Go's own default is lower than the number of groups that a proxy may send.
const maxHeaderValueCount = 16384

func setMaxHeaderValueCount(server *http.Server) { server.MaxHeaderValueCount = maxHeaderValueCount }
