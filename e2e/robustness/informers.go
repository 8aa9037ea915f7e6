package robustness

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"byre/e2e/servers"
)

// informer is client-go's, on one replica, in one encoding. It lives through all faults
// of its Env.
type informer struct {
	name    string
	replica *Replica
	store   cache.Store
}

// startInformers starts informers for the ConfigMaps of all namespaces on every replica:
// the reflector and the store, with a shorter wait after failures than the two minutes
// that an informer may take after many.
func (e *Env) startInformers() error {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	e.Cleanup(func() {
		cancel()
		running.Wait()
	})
	for _, r := range e.Replicas {
		for name, contentType := range map[string]string{"JSON": jsonType, "protobuf": protobufType} {
			config := rest.CopyConfig(r.Server.Config(servers.AdminToken))
			config.ContentType, config.AcceptContentTypes = contentType, contentType
			client, err := kubernetes.NewForConfig(config)
			if err != nil {
				return err
			}
			lists := cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "configmaps", metav1.NamespaceAll,
				fields.Everything())
			store := cache.NewStore(cache.MetaNamespaceKeyFunc)
			reflector := cache.NewReflectorWithOptions(cache.ToListWatcherWithWatchListSemantics(lists, client),
				&corev1.ConfigMap{}, store, cache.ReflectorOptions{
					Backoff: &wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Jitter: 0.1, Steps: 4, Cap: time.Second},
				})
			running.Go(func() { reflector.RunWithContext(ctx) })
			e.informers = append(e.informers, informer{r.Name + " " + name, r, store})
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
		for slices.Contains(e.serving(), i.replica) {
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
