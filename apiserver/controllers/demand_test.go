package controllers

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

func newFakeRunner() (*Runner, clients) {
	client := fake.NewClientset(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "there", Namespace: "default"}})
	config := Config{ClientConfig: func(string, user.Info) *rest.Config { return &rest.Config{} }}
	return &Runner{config: config}, clients{kube: client}
}

// controllerOf returns a controller that calls use with the informer of ConfigMaps.
func controllerOf(use func(cache.SharedIndexInformer)) map[string]descriptor {
	build := func(_ context.Context, cc *controllerContext) (func(context.Context), error) {
		use(cc.InformerFactory.Core().V1().ConfigMaps().Informer())
		return func(ctx context.Context) { <-ctx.Done() }, nil
	}
	return map[string]descriptor{"one": {own: &ownController{"one", build}}}
}

// TestOnDemand_NoEventBeforeTheConstructorsReturn: a controller sees the objects that are there, but only once all
// constructors have returned.
func TestOnDemand_NoEventBeforeTheConstructorsReturn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		seen := make(chan string, 1)
		r, root := newFakeRunner()
		go func() {
			_ = r.runBuilt(ctx, root, controllerOf(func(i cache.SharedIndexInformer) {
				_, _ = i.AddEventHandler(cache.ResourceEventHandlerFuncs{
					AddFunc: func(object any) { seen <- object.(*corev1.ConfigMap).Name },
				})
				time.Sleep(time.Minute)
				if len(seen) > 0 {
					t.Error("the handler was called before the constructor has returned")
				}
			}))
		}()
		time.Sleep(2 * time.Minute)
		if len(seen) != 1 || <-seen != "there" {
			t.Error("the handler was not called for the object that is there")
		}
		cancel()
		synctest.Wait()
	})
}

// TestOnDemand_ReleasesItsObjects: a term that has ended keeps no object in memory, although the metrics of
// upstream's controllers still refer to the caches.
func TestOnDemand_ReleasesItsObjects(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var kept cache.Store
		r, root := newFakeRunner()
		go func() {
			_ = r.runBuilt(ctx, root, controllerOf(func(i cache.SharedIndexInformer) { kept = i.GetStore() }))
		}()
		synctest.Wait()
		if n := len(kept.List()); n != 1 {
			t.Errorf("during the term the cache has %d objects", n)
		}
		cancel()
		synctest.Wait()
		if n := len(kept.List()); n != 0 {
			t.Errorf("after the term the cache has %d objects", n)
		}
	})
}

// TestControllers_SeeEachObjectEveryDay: what a controller has given up is tried again, although nothing changes.
func TestControllers_SeeEachObjectEveryDay(t *testing.T) {
	t.Parallel()
	for name, run := range map[string]func(context.Context, *Runner, clients, map[string]descriptor){
		"on demand": func(ctx context.Context, r *Runner, root clients, all map[string]descriptor) {
			_ = r.runBuilt(ctx, root, all)
		},
		"essential": func(ctx context.Context, r *Runner, root clients, all map[string]descriptor) {
			_ = r.runEssential(ctx, root, all)
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			var updates atomic.Int32
			r, root := newFakeRunner()
			go run(ctx, r, root, controllerOf(func(i cache.SharedIndexInformer) {
				_, _ = i.AddEventHandler(cache.ResourceEventHandlerFuncs{UpdateFunc: func(any, any) { updates.Add(1) }})
			}))
			time.Sleep(11 * time.Hour)
			if n := updates.Load(); n != 0 {
				t.Errorf("%s: %d updates in 11 hours", name, n)
			}
			time.Sleep(14 * time.Hour)
			if updates.Load() == 0 {
				t.Errorf("%s: no update in 25 hours", name)
			}
			cancel()
			synctest.Wait()
		})
	}
}
