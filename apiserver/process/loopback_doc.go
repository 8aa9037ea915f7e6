// Package loopback is the transport for requests that the server makes to itself. A
// Transport passes HTTP requests to a handler in the same process, without a socket, TLS
// or tokens.
//
//   - The handler gets a request as if it had come over HTTP/2. Authenticator authenticates
//     it as the user whom As was given, or else as the server itself, UserName in the group
//     system:masters.
//   - A response streams: the client receives what the handler has written at once, and Write
//     blocks while MaxBufferedBytes are unread.
//   - The handler's context ends when the request's context ends or when the client closes
//     the response body. The values of the request's context do not reach the handler,
//     because the user or the route of another request may be among them.
//
// The caller calls Serve before the first request. Close makes new requests fail and ends those
// in flight; Wait returns when their handlers have returned.
package process
