package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"byre/apiserver/process"
	"byre/apiserver/process/pki"
	"byre/sqlstore/replication"
)

// standbyRetry is the Retry-After of a standby, in seconds.
const standbyRetry = 1

// ServeStandby answers on the secure port, without a database, until ctx ends: /livez and /metrics with 200,
// and everything else with 503, because another server has the lease.
func ServeStandby(ctx context.Context, o Completed, current func() replication.StandbyStatus) error {
	holder := func() string { return current().Holder }
	if _, err := os.Stat(pki.Paths(o.CertDir).CACert); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s has no certificates: copy that directory from %s, so that clients trust both servers",
			o.CertDir, holder())
	}
	listener, err := process.Listen(ctx, o.Serving)
	if err != nil {
		return err
	}
	server, certs, config, err := newStandbyServer(o, listener, standbyHandler(holder, standbyMetrics(current)))
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	klog.InfoS("Standby", "address", listener.Addr().String(), "serves", holder())
	process.NotifyReady("Standby: " + holder() + " serves")
	var beside sync.WaitGroup
	defer beside.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	beside.Go(func() { _ = certs.Run(ctx) })                             // it returns nil
	beside.Go(func() { _ = (&certificates{config: config}).renew(ctx) }) // as the next one does
	// it has no work that could hang
	beside.Go(func() { _ = process.RunWatchdog(ctx, func(context.Context) error { return nil }) })
	beside.Go(func() { <-ctx.Done(); _ = server.Close() }) // no request takes time
	return ignoreClosed(server.ServeTLS(listener, "", ""))
}

func newStandbyServer(
	o Completed, listener net.Listener, handler http.Handler,
) (*http.Server, *process.Certificates, pki.Config, error) {
	_, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		return nil, nil, pki.Config{}, err
	}
	config := newPKIConfig(o, port)
	files, report, err := pki.Ensure(config)
	if err != nil {
		return nil, nil, config, err
	}
	logWritten(config.Dir, report)
	tlsConfig, certs, err := newServingCertificates(o, files, nil)
	if err != nil {
		return nil, nil, config, err
	}
	server, err := process.NewHTTPServer(o.Serving, handler, tlsConfig)
	return server, certs, config, err
}

// standbyMetrics are for everybody: a standby can't ask who may read them.
func standbyMetrics(current func() replication.StandbyStatus) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "byre_standby_copy_timestamp_seconds",
		Help: "When the copy of a standby last had all that the server which serves has copied; 0 if it never had.",
	}, func() float64 {
		if copied := current().Copied; !copied.IsZero() {
			return float64(copied.Unix())
		}
		return 0
	}))
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
}

func standbyHandler(holder func() string, metrics http.Handler) http.Handler {
	text := func(code int, text func() string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			w.WriteHeader(code)
			_, _ = io.WriteString(w, text())
		}
	}
	serves := func() string { return "standby: " + holder() + " serves" }
	mux := http.NewServeMux()
	mux.Handle("/livez", text(http.StatusOK, func() string { return "ok" }))
	mux.Handle("/readyz", text(http.StatusServiceUnavailable, serves))
	mux.Handle("/healthz", text(http.StatusServiceUnavailable, serves))
	mux.Handle("/metrics", metrics)
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		refuse(w, "this server is the standby: "+holder()+" serves")
	})
	return mux
}

// withFence refuses the requests that come when fence fails. Those that came before may be answered: what they
// read or wrote was so when they came, or the database refuses them.
func withFence(fence func() error, handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := fence(); err != nil {
			refuse(w, err.Error())
			return
		}
		handler.ServeHTTP(w, r)
	})
}

// refuse answers with 503, because another server serves, or is about to.
func refuse(w http.ResponseWriter, message string) {
	status := apierrors.NewServiceUnavailable(message).Status()
	status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	status.Details = &metav1.StatusDetails{RetryAfterSeconds: standbyRetry}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Retry-After", strconv.Itoa(standbyRetry))
	w.WriteHeader(http.StatusServiceUnavailable)
	_ = json.NewEncoder(w).Encode(status)
}
