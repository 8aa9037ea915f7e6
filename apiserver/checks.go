package apiserver

import (
	"net/http"
	"slices"

	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/client-go/informers"

	"byre/apiserver/process/health"
)

// checks are the checks of /livez, /readyz and /healthz. A check that kube-apiserver
// has too bears kube-apiserver's name, because probes and dashboards name it.
func (s *Server) checks() health.Checks {
	store, storeReady := health.Store(s.core.checkDatabase)
	checks := health.Checks{
		Always:           slices.Concat([]health.Checker{health.Log(), store}, s.encryption.checks),
		BootSequence:     s.bootChecks(),
		Writes:           append([]health.Checker{s.core.writable(storeReady)}, s.core.quotaCheck(s.config.Options.Store.DatabaseQuota.Value())...),
		ReadyzOnly:       []health.Checker{informerCheck(s.auth.Ready, s.clients.informers), health.Shutdown(s.signals.ShutdownInitiated.Signaled())},
		Separate:         s.core.replicationCheck(),
		LivezGracePeriod: s.config.Options.LivezGracePeriod,
	}
	for _, server := range s.chain {
		checks.BootSequence = append(checks.BootSequence, server.Checks()...)
	}
	return checks
}

// informerCheck is kube-apiserver's check of its informers, of which the Node authorizer here
// has one of its own: isReady reports it.
func informerCheck(isReady func() error, shared informers.SharedInformerFactory) health.Checker {
	synced := healthz.NewInformerSyncHealthz(shared)
	return healthz.NamedCheck(synced.Name(), func(r *http.Request) error {
		if err := isReady(); err != nil {
			return err
		}
		return synced.Check(r)
	})
}

// bootChecks are the checks that pass once the parts of this server have started.
func (s *Server) bootChecks() []health.Checker {
	started := s.signals.MuxAndDiscoveryComplete.Signaled()
	checks := health.PostStartHooks(started,
		// MuxAndDiscoveryComplete is signaled after the store has its first revision
		// and the feed follows the store.
		"storage-readiness",
		"start-apiserver-admission-initializer",
		"generic-apiserver-start-informers",
	)
	if s.flow == nil {
		checks = append(checks, health.PostStartHook("max-in-flight-filter", started))
	} else {
		checks = append(checks, health.PostStartHooks(started, "priority-and-fairness-config-consumer", "priority-and-fairness-filter")...)
	}
	checks = append(checks, health.PostStartHook("start-service-ip-repair-controllers", s.builtin.Repaired()))
	for i, step := range s.bootstrap.Checks() {
		checks = append(checks, healthz.NamedCheck(health.PostStartHookPrefix+step.Name, func(*http.Request) error {
			return s.bootstrap.Checks()[i].Err
		}))
	}
	checks = append(checks, health.PostStartHook("start-cluster-authentication-info-controller", s.triedToRecordKeys.Signaled()))
	return append(checks, s.controlplane.Checks()...)
}
