package server

import (
	"net/http"

	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/client-go/informers"

	"byre/apiserver/process"

	"byre/apiserver/registry"
)

// newChecks makes the checks of /livez, /readyz and /healthz. A check that kube-apiserver
// has too bears kube-apiserver's name, because probes and dashboards name it.
func newChecks(o Completed, s *storageBackend, c clients, a *access, b *registry.Builtin, h *hooks, signals *process.Signals) process.HealthChecks {
	store, storeReady := process.StoreHealth(s.checkDatabase)
	return process.HealthChecks{
		Always:           []process.HealthChecker{healthz.LogHealthz, store},
		NotLive:          s.encryption.checks,
		BootSequence:     newBootChecks(o, a, b, h, signals),
		Writes:           append([]process.HealthChecker{s.writable(storeReady)}, s.quotaCheck(o.Store.DatabaseQuota.Value())...),
		ReadyzOnly:       []process.HealthChecker{informerCheck(a.auth.Ready, c.informers), healthz.NewShutdownHealthz(signals.ShutdownInitiated.Signaled())},
		Separate:         s.replicationCheck(),
		LivezGracePeriod: o.Generic.LivezGracePeriod,
	}
}

// informerCheck is kube-apiserver's check of its informers, of which the Node authorizer here
// has one of its own: isReady reports it.
func informerCheck(isReady func() error, shared informers.SharedInformerFactory) process.HealthChecker {
	synced := healthz.NewInformerSyncHealthz(shared)
	return healthz.NamedCheck(synced.Name(), func(r *http.Request) error {
		if err := isReady(); err != nil {
			return err
		}
		return synced.Check(r)
	})
}

// newBootChecks makes the checks that pass once the parts of this server have started.
func newBootChecks(o Completed, a *access, b *registry.Builtin, h *hooks, signals *process.Signals) []process.HealthChecker {
	started := signals.MuxAndDiscoveryComplete.Signaled()
	checks := process.PostStartHooks(started,
		// MuxAndDiscoveryComplete is signaled after the store has its first revision
		// and the feed follows the store.
		"storage-readiness",
		"start-apiserver-admission-initializer",
		"generic-apiserver-start-informers",
	)
	if a.flow == nil {
		checks = append(checks, process.PostStartHook("max-in-flight-filter", started))
	} else {
		checks = append(checks, process.PostStartHooks(started, "priority-and-fairness-config-consumer", "priority-and-fairness-filter")...)
	}
	if o.Store.ReadsOnly() {
		return checks // the other parts write
	}
	checks = append(checks, process.PostStartHook("start-service-ip-repair-controllers", b.Repaired()))
	checks = append(checks, h.bootstrap.Checks()...)
	checks = append(checks, process.PostStartHook("start-cluster-authentication-info-controller", h.keys.tried.Signaled()))
	return append(checks, h.controlplane.Checks()...)
}
