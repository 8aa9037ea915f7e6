package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	mutatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/mutating"
	validatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/validating"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"

	"byre/apiserver/access/admission"
	"byre/sqlstore"
)

// A server of a fork (sqlstore.Fork) must not act on what the objects describe, because that is
// another cluster's: it runs no controllers, calls no admission webhooks, and connects to no node, Pod
// or Service, and so to no aggregated API server. It does call the conversion webhooks of custom
// resources, without which it could not read them.

// readFork reads whether the database is a fork. With adopt it is served as any other, and its record
// is deleted by storageBackend.deleteForkRecord.
func readFork(ctx context.Context, driver sqlstore.Driver, adopt bool) (*sqlstore.Fork, error) {
	fork, err := sqlstore.ReadFork(ctx, driver.Get)
	if fork == nil || adopt || err != nil {
		return nil, err
	}
	moment := prometheus.NewGauge(prometheus.GaugeOpts{
		Name:        "byre_store_fork_timestamp_seconds",
		Help:        "The moment whose objects byre fork has copied to this database, with its revision. It is absent unless the database is a fork.",
		ConstLabels: prometheus.Labels{"revision": fmt.Sprint(fork.Revision)},
	})
	moment.Set(float64(fork.Time.Unix()))
	legacyregistry.Registerer().MustRegister(moment)
	klog.Warningf("THIS IS A FORK, of revision %d of %s: no controllers run, no admission webhooks or aggregated API servers are called, and nodes, Pods and Services are not connected to. \"byre serve --adopt\" makes it a cluster of its own",
		fork.Revision, fork.Time.UTC().Format(time.RFC3339))
	return fork, nil
}

var errFork = errors.New("this is a fork, which connects to no node, Pod or Service: start it with --adopt to make it a cluster of its own")

// refuseDial is the dial function of a fork.
func refuseDial(context.Context, string, string) (net.Conn, error) { return nil, errFork }

// withoutWebhooks returns the options of a fork.
func withoutWebhooks(o admission.Options) *admission.Options {
	generic := *o.GenericAdmission
	generic.DisablePlugins = append([]string{mutatingwebhook.PluginName, validatingwebhook.PluginName}, generic.DisablePlugins...)
	o.GenericAdmission = &generic
	return &o
}

// deleteForkRecord deletes the record of a fork, if there is one.
func (s *storageBackend) deleteForkRecord(ctx context.Context) error {
	record, _, err := s.database.Driver.Get(ctx, sqlstore.ForkKey)
	if err == nil {
		_, err = s.Store.Commit(ctx, sqlstore.Write{
			Op: sqlstore.Delete, Key: sqlstore.ForkKey, Replaces: record.Revision, Author: sqlstore.Author{User: "byre", Verb: "adopt"},
		})
	}
	if errors.Is(err, sqlstore.ErrNotFound) { // another server has deleted it
		return nil
	}
	return err
}
