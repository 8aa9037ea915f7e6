package apiserver

import (
	"context"
	"errors"
	"net"
	"net/http"

	"k8s.io/klog/v2"

	"byre/apiserver/process/lifecycle"
	"byre/apiserver/process/memory"
)

// The names of the stages that a shutdown stops before all others.
const (
	membershipStage = "membership"
	servingStage    = "serving"
)

// stages are the stages of components, in the order in which they start. They stop in
// the reverse order, except that a shutdown stops membership and serving first (see
// shutdown). release closes the listeners.
func (s *Server) stages(release func()) []lifecycle.Stage {
	return []lifecycle.Stage{
		{
			Name:       "store",
			Components: []lifecycle.Component{{Name: "store", Run: s.core.store.Run}},
		},
		{
			Name:       "feed",
			Components: []lifecycle.Component{{Name: "feed", Run: s.core.feed.Run}},
			Await:      s.core.ensureFirstRevision,
		},
		{
			Name:       "request handling",
			Components: s.requestComponents(),
		},
		{
			Name: "built-in API",
			Components: []lifecycle.Component{
				{Name: "built-in groups", Run: s.builtin.Run},
				{Name: "watches of changes", Run: s.changes.Run},
			},
			Prepare: s.startInformers,
			Release: s.stopLoopback,
		},
		{
			Name:       "controllers",
			Components: s.workComponents(),
		},
		{
			Name:       membershipStage,
			Components: s.membershipComponents(),
		},
		{
			Name:       servingStage,
			Components: s.servingComponents(),
			Release:    release,
		},
	}
}

// requestComponents are the components that the handling of a request relies on.
func (s *Server) requestComponents() []lifecycle.Component {
	components := []lifecycle.Component{
		{Name: "audit", Run: s.audit.Run},
		{Name: "certificates", Run: s.certs.Run},
		{Name: "certificate renewal", Run: s.renewCertificates},
		{Name: "authentication and authorization", Run: s.auth.Run},
		{Name: "admission", Run: s.admission.Run},
		{Name: "priority and fairness", Run: s.flow.Run},
	}
	if s.encryption.reload != nil {
		components = append(components, lifecycle.Component{Name: "encryption configuration", Run: func(ctx context.Context) error {
			s.encryption.reload.Run(ctx)
			return nil
		}})
	}
	if s.config.Options.Debug.SocketPath != "" {
		components = append(components, lifecycle.Component{Name: "debug socket", Run: s.serveDebugSocket})
	}
	return components
}

// startInformers signals that every handler is installed and that the components that
// they rely on have started. Then it starts the informers.
func (s *Server) startInformers(ctx context.Context) {
	s.signals.MuxAndDiscoveryComplete.Signal()
	s.clients.informers.StartWithContext(ctx)
}

// stopLoopback ends the loopback requests. Those that are left are watches of informers
// that nobody reads any more.
func (s *Server) stopLoopback() {
	s.endBase()
	s.transport.Close()
	s.transport.Wait()
	s.clients.informers.Shutdown()
}

// workComponents are the components that make requests themselves. They include the
// controllers where no other server uses the database; otherwise the controllers are
// among membershipComponents.
func (s *Server) workComponents() []lifecycle.Component {
	components := []lifecycle.Component{
		{Name: "bootstrap objects", Run: s.runBootstrap},
		{Name: "readiness", Run: s.awaitReady, MayEnd: true},
		{Name: "record of trusted keys", Run: s.recordTrustedKeys, MayEnd: true},
		{Name: "watchdog", Run: s.runWatchdog, MayEnd: true},
		{Name: "memory", Run: func(ctx context.Context) error { return memory.Tune(ctx, s.signals.HasBeenReady.Signaled()) }},
	}
	// A fork may have the configuration of the cluster that it is of, whose backups it must not delete.
	if s.config.Options.Backup.Schedule != "" && s.core.fork == nil {
		components = append(components, lifecycle.Component{Name: "scheduled backups", Run: s.makeBackups})
	}
	for _, server := range s.chain {
		components = append(components, lifecycle.Component{Name: "server of the delegation chain", Run: server.Run})
	}
	if keep := s.config.KeepViews; keep != nil {
		components = append(components, lifecycle.Component{Name: "views for SQL", Run: func(ctx context.Context) error {
			return keep(ctx, s.core.database, s.clients.loopback)
		}})
	}
	if !s.core.database.Shared {
		components = append(components, lifecycle.Component{Name: "controllers", Run: s.runControllers})
	}
	return components
}

// membershipComponents are what this server does as a member of a cluster: it is an
// endpoint of the kubernetes Service, holds an identity Lease, and, where other servers
// use the database too, is a candidate for running the controllers.
func (s *Server) membershipComponents() []lifecycle.Component {
	components := []lifecycle.Component{
		{Name: "endpoint of the kubernetes Service", Run: s.bootstrap.PublishEndpoints},
		{Name: "control plane", Run: s.runControlPlane},
	}
	if s.core.database.Shared {
		components = append(components, lifecycle.Component{Name: "controllers", Run: s.runControllers})
	}
	return components
}

// servingComponents serve the connections that the listeners accept.
func (s *Server) servingComponents() []lifecycle.Component {
	components := []lifecycle.Component{{Name: "listener", Run: func(context.Context) error {
		return ignoreClosed(s.http.ServeTLS(s.listener, "", ""))
	}}}
	if s.insecure != nil {
		components = append(components, lifecycle.Component{Name: "insecure listener", Run: func(context.Context) error {
			klog.Warningf("Serving without TLS and without credentials on %s: whoever reaches this port is an administrator", s.insecure.Addr())
			return ignoreClosed(s.plain.Serve(s.insecure))
		}})
	}
	return components
}

// ignoreClosed returns nil for the error by which a server ends that was shut down.
func ignoreClosed(err error) error {
	if errors.Is(err, http.ErrServerClosed) || errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
