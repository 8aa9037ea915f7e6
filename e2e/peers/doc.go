// Package peers has the servers that an API server is configured to call, as real servers
// on free ports of 127.0.0.1: an OpenID Connect issuer, webhooks for authentication,
// authorization, admission and audit, and a key service. An authority signs their
// certificates, and those of users and front proxies.
//
// The caller that makes a peer closes it. A peer's methods may be called while it serves.
package peers
