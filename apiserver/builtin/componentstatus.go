package builtin

import (
	"context"
	"crypto/tls"
	"time"

	"k8s.io/kubernetes/pkg/probe"
	"k8s.io/kubernetes/pkg/registry/core/componentstatus"
)

// The secure ports of the other components. They are written out, as upstream's
// package of them imports the generic server.
const (
	controllerManagerPort = 10257
	schedulerPort         = 10259
)

// probeTimeout is as long as upstream waits for etcd.
const probeTimeout = 20 * time.Second

// componentStatuses shows the store under the name that clients of this old
// resource look for, etcd-0, and probes the other components where upstream does.
func componentStatuses(w *wiring) (storages, error) {
	return storages{"": componentstatus.NewStorage(func() map[string]componentstatus.Server {
		return map[string]componentstatus.Server{
			"controller-manager": localHealthz(controllerManagerPort),
			"scheduler":          localHealthz(schedulerPort),
			"etcd-0":             storeProbe(w.StoreReady),
		}
	})}, nil
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

// storeProbe makes a component of the store's readiness.
type storeProbe func(context.Context) error

func (p storeProbe) DoServerCheck() (probe.Result, string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), probeTimeout)
	defer cancel()
	if err := p(ctx); err != nil {
		return probe.Failure, "", err
	}
	return probe.Success, "ok", nil
}
