package registry

import (
	"context"
	"crypto/tls"
	"time"

	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kubernetes/pkg/probe"
	"k8s.io/kubernetes/pkg/registry/core/componentstatus"
)

// The secure ports of the other components, as in k8s.io/kubernetes/cmd/kube-scheduler
// and kube-controller-manager. Those packages are not imported, because they import the
// generic API server.
const (
	controllerManagerPort = 10257
	schedulerPort         = 10259
)

// probeTimeout bounds the probe of the store; upstream's probe of etcd has the same
// limit.
const probeTimeout = 20 * time.Second

// componentStatuses reports the readiness of the store under the name etcd-0, which
// clients of this deprecated resource look for. It probes the other components at the
// addresses that upstream probes, unless this process does their work.
func (p coreProvider) componentStatuses() rest.Storage {
	return componentstatus.NewStorage(func() map[string]componentstatus.Server {
		servers := map[string]componentstatus.Server{
			"controller-manager": localHealthz(controllerManagerPort),
			"scheduler":          localHealthz(schedulerPort),
			"etcd-0":             storeProbe(p.StoreReady),
		}
		for _, name := range p.InProcess {
			servers[name] = storeProbe(func(context.Context) error { return nil })
		}
		return servers
	})
}

func localHealthz(port int) componentstatus.Server {
	return &componentstatus.HttpServer{
		EnableHTTPS: true,
		TLSConfig:   &tls.Config{InsecureSkipVerify: true},
		Addr:        "127.0.0.1",
		Port:        port,
		Path:        "/healthz",
	}
}

// storeProbe implements componentstatus.Server by calling Config.StoreReady.
type storeProbe func(context.Context) error

func (p storeProbe) DoServerCheck() (probe.Result, string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), probeTimeout)
	defer cancel()
	if err := p(ctx); err != nil {
		return probe.Failure, "", err
	}
	return probe.Success, "ok", nil
}
