// Package process has what a server is besides its API: its start and shutdown, the listeners, the health
// checks, the client of its own API, and the use of memory. It also has the interface between the servers
// of the delegation chain.
//
// # Start and shutdown
//
// Signals name the moments of a server's life, and Shutdown runs its end in order. The names, and what waits
// for what, are those of k8s.io/apiserver (pkg/server/lifecycle_signals.go and
// GenericAPIServer.RunWithContext). Stages start the components of a server one after another, stop them
// in reverse order, and wait for each.
//
// NotifyReady, NotifyStopping and RunWatchdog notify systemd, by the protocol of sd_notify(3): that the
// server is ready, that it stops, and, if the unit has WatchdogSec=, that it is alive. Without the
// variables NOTIFY_SOCKET and WATCHDOG_USEC nothing is sent. A message that can't be sent is logged.
// kube-apiserver sends READY=1 once its post-start hooks have been started. Here it is sent when all
// checks of /readyz pass but those of writes, so that units that are ordered after this one find a
// server that works, and "systemctl restart" ends on a full disk too.
//
// # Health
//
// InstallHealth serves /livez, /readyz and /healthz in upstream's formats. Each check has the name that it
// has in kube-apiserver. Requests run the checks. The first request of upstream's log check starts a
// goroutine that flushes the log every minute until the process ends.
//
// # Listeners
//
// Listen and ListenInsecure bind the server's ports, NewHTTPServer makes the HTTP servers, and Certificates
// hold the serving certificates, which are read again when their files change. The bounds of a connection
// (header size, timeouts, streams) are those of k8s.io/apiserver/pkg/server/secure_serving.go. A client that
// connects before the HTTP server runs waits in the listener's queue.
//
// # Requests to the server itself
//
// A LoopbackTransport passes HTTP requests to a handler in the same process, without a socket, TLS or
// tokens:
//
//   - The handler gets a request as if it had come over HTTP/2. LoopbackAuthenticator authenticates
//     it as the user who was given to LoopbackAs, or else as the server itself, LoopbackUserName in the
//     group system:masters.
//   - A response streams: the client receives at once what the handler has written, and Write
//     blocks while MaxBufferedBytes are unread.
//   - The handler's context ends when the request's context ends or when the client closes
//     the response body. The values of the request's context do not reach the handler,
//     because the user or the route of another request may be among them.
//
// The caller calls Serve before the first request. Close makes new requests fail and ends those in
// flight; Wait returns when their handlers have returned.
//
// # Services
//
// A ServiceResolver resolves the Services that this server calls: those of admission webhooks, conversion
// webhooks and aggregated API servers. One rule holds for all, as in kube-apiserver. It is safe for
// concurrent use if its listers are.
//
// # Memory
//
// MemoryLimit returns how much memory the process may use. TuneMemory tunes the Go runtime for a server
// with bursts of requests: it paces the garbage collector (memory.go), and returns to the system what only
// the start, or a burst, needed (memory_release.go). An operator's GOGC and GOMEMLIMIT are left as they
// are.
//
// # The delegation chain
//
// The aggregator, the built-in API and the server of custom resources are three HTTP handlers in a row.
// Each serves its own requests and passes all others on to its delegation target, as in kube-apiserver
// (cmd/kube-apiserver/app/server.go, CreateServerChain). They do not import each other: the assembly makes
// each ChainServer with the same Dependencies.
//
// # Who owns the goroutines
//
// Constructors start none. The functions and methods named Run, RunWatchdog and TuneMemory run until their
// context ends, and have joined their goroutines when they return. Stages own those of their components.
package process
