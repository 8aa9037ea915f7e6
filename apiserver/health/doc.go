// Package health says whether the server lives and is ready: /livez, /readyz
// and /healthz in upstream's formats, each check under a name of its own, and
// the gates that the parts of a start open one by one.
//
// The checks run while a request asks for them; nothing here runs by itself.
package health
