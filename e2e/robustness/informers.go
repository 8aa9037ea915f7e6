package robustness

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"byre/e2e/servers"
)

// informer is client-go's, on one replica, in one encoding. It lives through all faults
// of its Env.
type informer struct {
	name  string
	store cache.Store
}

// startInformers starts informers for the ConfigMaps of all namespaces on every replica.
func (e *Env) startInformers() error {
	stop := make(chan struct{})
	e.Cleanup(func() { close(stop) })
	for _, r := range e.Replicas {
		for name, contentType := range map[string]string{"JSON": jsonType, "protobuf": protobufType} {
			config := rest.CopyConfig(r.Server.Config(servers.AdminToken))
			config.ContentType, config.AcceptContentTypes = contentType, contentType
			client, err := kubernetes.NewForConfig(config)
			if err != nil {
				return err
			}
			factory := informers.NewSharedInformerFactory(client, 0)
			store := factory.Core().V1().ConfigMaps().Informer().GetStore()
			factory.Start(stop)
			e.Cleanup(factory.Shutdown) // joins what stop ends
			e.informers = append(e.informers, informer{r.Name + " " + name, store})
		}
	}
	return nil
}

// awaitInformers waits until every informer has what the database has of a namespace,
// and returns how long that took.
func (e *Env) awaitInformers(ctx context.Context, namespace string, want map[string]int64) (time.Duration, error) {
	begin := time.Now()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for _, i := range e.informers {
		for {
			got, err := i.contents(namespace)
			if err != nil {
				return 0, err
			}
			if maps.Equal(got, want) {
				break
			}
			select {
			case <-ctx.Done():
				return 0, fmt.Errorf("the informer on %s has %v after %v; the database has %v", i.name, got, patience, want)
			case <-tick.C:
			}
		}
	}
	return time.Since(begin), nil
}

func (i informer) contents(namespace string) (map[string]int64, error) {
	all := map[string]int64{}
	for _, item := range i.store.List() {
		cm, ok := item.(*corev1.ConfigMap)
		if !ok {
			return nil, fmt.Errorf("the informer on %s has a %T", i.name, item)
		}
		if cm.Namespace != namespace {
			continue
		}
		revision, err := strconv.ParseInt(cm.ResourceVersion, 10, 64)
		if err != nil {
			return nil, err
		}
		all[cm.Name] = revision
	}
	return all, nil
}
