// Package bootstrap makes the objects that every cluster has before anyone has
// asked for them: the system namespaces, the default ServiceCIDR, the kubernetes
// Service with the addresses of the servers behind it, the RBAC policy, the
// system priority classes, and the flow schemas and priority levels.
//
// # What is promised
//
//   - Everything is made as upstream's post-start hooks make it, and named as
//     they are in health checks. A step whose API is turned off is left out.
//   - Making is idempotent: a start over a complete database writes nothing but
//     the server's own entry among the replicas.
//   - What an administrator changed stays, where upstream lets it stay (roles
//     annotated rbac.authorization.kubernetes.io/autoupdate=false, suggested flow
//     schemas, the default ServiceCIDR).
//   - Any number of replicas may run it at once.
//
// # What the caller owes
//
// The API is served to the given client while Run and Publish run. Publish needs it
// for a moment after its context has ended, to take the server out of the endpoints.
//
// # Shutting down
//
// Cancel the context of Publish first, and that of Run when nothing is served any
// more. Both join their loops.
package bootstrap
