// Package loopback lets the server be its own client: a Transport carries HTTP
// requests to a handler in the same process, without a socket, TLS or tokens.
//
// # What is promised
//
//   - The handler sees a request as if it had come over HTTP/2, by the identity
//     Name in the group system:masters (see Authenticator).
//   - A response streams: a watch's events reach the client as they are flushed.
//     A client that does not read holds the handler up once Window bytes wait.
//   - Ending the request's context, or closing the response's body, ends the
//     handler's context. Values of the caller's context do not reach the
//     handler: those of another request (its user, its route) would mislead it.
//
// # What the caller owes
//
// Serve before the first request. Close and Wait at the end: Close refuses new
// requests and ends those under way, Wait joins their handlers.
package loopback
