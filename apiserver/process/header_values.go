//go:build !go1.27

package process

import "net/http"

// setMaxHeaderValueCount does nothing: Go before 1.27 does not count header values.
func setMaxHeaderValueCount(*http.Server) {}
