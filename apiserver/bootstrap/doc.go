// Package bootstrap creates the objects that every cluster has from its first start: the
// system namespaces, the default ServiceCIDR, the Service default/kubernetes and its
// endpoints, the RBAC bootstrap policy, the system priority classes, and the flow schemas
// and priority levels.
//
// # What it promises
//
//   - Each step creates the objects that one of upstream's post-start hooks creates, and
//     has the hook's name in health checks. A step whose API is not served is left out.
//   - Steps are idempotent: a start over a complete database writes nothing but this
//     server's lease.
//   - A change by an administrator stays where upstream lets it stay: roles annotated
//     rbac.authorization.kubernetes.io/autoupdate=false, suggested flow schemas, the
//     default ServiceCIDR.
//   - Any number of replicas may run it at the same time.
//
// # Why it does not run upstream's hooks
//
// The hooks rbac/bootstrap-roles and scheduling/bootstrap-system-priority-classes wait for a
// second before their first try. All write one object after the other, each in a transaction of
// its own: about 250 on a first start. A server is to be ready within 300 ms
// (docs/performance.md); the steps here run side by side, and their writes share transactions.
// The controllers of namespaces, ServiceCIDRs and the kubernetes Service return no errors, so
// that readiness could not name them, and start goroutines that nobody waits for. The policy, the
// reconciliation of roles, the ensurer of flow schemas and the reconciler of endpoints are upstream's.
//
// # What the caller owes
//
// The server answers the given client while Run and PublishEndpoints run. The caller starts the
// given informers after New. PublishEndpoints makes one more request after its context has ended,
// which removes the server from the endpoints.
//
// # How it shuts down
//
// The caller cancels the context of PublishEndpoints first, and the context of Run when
// no request is served any more. Both return after their goroutines have ended.
package bootstrap
