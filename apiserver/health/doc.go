// Package health says whether the server lives and is ready: /livez, /readyz
// and /healthz in upstream's formats, each check under the name that it has in a
// kube-apiserver.
//
// The checks run while a request asks for them; nothing here runs by itself but
// the flushing of the log that Log starts.
package health
