package controllers

import (
	"context"
	"reflect"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// TestOnDemand_NoEventBeforeTheConstructorReturns: a controller that is built while its
// informer runs sees the objects that are there, but only once its constructor has returned.
func TestOnDemand_NoEventBeforeTheConstructorReturns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		client := fake.NewClientset(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "there", Namespace: "default"}})
		factory := informers.NewSharedInformerFactory(client, 0)
		factory.Core().V1().ConfigMaps().Informer()
		factory.StartWithContext(ctx)
		defer factory.Shutdown()
		defer cancel()
		synctest.Wait() // the informer has listed

		seen := make(chan string, 1)
		o := newFakeDemand(client)
		o.informers = factory
		_, err := o.build(ctx, "late", descriptor{own: &ownController{"late", func(_ context.Context, cc *controllerContext) (func(context.Context), error) {
			_, err := cc.InformerFactory.Core().V1().ConfigMaps().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
				AddFunc: func(object any) { seen <- object.(*corev1.ConfigMap).Name },
			})
			synctest.Wait() // every goroutine has done what it can
			if len(seen) > 0 {
				t.Error("the handler was called before the constructor has returned")
			}
			return nil, err
		}}})
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if len(seen) != 1 || <-seen != "there" {
			t.Error("the handler was not called for the object that is there")
		}
	})
}

func newFakeDemand(client kubernetes.Interface) *onDemand {
	root := clients{kube: client}
	return &onDemand{
		cc: &controllerContext{
			Config: &Config{ClientConfig: func(string, user.Info) *rest.Config { return &rest.Config{} }},
			root:   root,
		},
		informers: newInformers(root, nil),
	}
}

// controllerOf returns a controller that calls use with the informer of ConfigMaps.
func controllerOf(use func(cache.SharedIndexInformer)) map[string]descriptor {
	return map[string]descriptor{"one": {own: &ownController{"one", func(_ context.Context, cc *controllerContext) (func(context.Context), error) {
		use(cc.InformerFactory.Core().V1().ConfigMaps().Informer())
		return func(ctx context.Context) { <-ctx.Done() }, nil
	}}}}
}

// TestOnDemand_ReleasesItsObjects: a term that has ended keeps no object in memory, although the metrics of
// upstream's controllers still refer to the caches.
func TestOnDemand_ReleasesItsObjects(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		o := newFakeDemand(fake.NewClientset(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "there", Namespace: "default"}}))
		var kept cache.Store
		o.controllers = controllerOf(func(i cache.SharedIndexInformer) { kept = i.GetStore() })
		go o.run(ctx)
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
	for name, run := range map[string]func(context.Context, *onDemand){
		"on demand": func(ctx context.Context, o *onDemand) { o.run(ctx) },
		"essential": func(ctx context.Context, o *onDemand) {
			_ = (&Runner{config: *o.cc.Config}).runEssential(ctx, o.cc.root, o.controllers)
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			var updates atomic.Int32
			o := newFakeDemand(fake.NewClientset(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "there", Namespace: "default"}}))
			o.controllers = controllerOf(func(i cache.SharedIndexInformer) {
				_, _ = i.AddEventHandler(cache.ResourceEventHandlerFuncs{UpdateFunc: func(any, any) { updates.Add(1) }})
			})
			go run(ctx, o)
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

// TestGatedInformer_GatesEveryHandler fails when upstream adds a way to add a handler, which
// gatedInformer would pass on without the gate.
func TestGatedInformer_GatesEveryHandler(t *testing.T) {
	t.Parallel()
	var adders []string
	for method := range reflect.TypeFor[cache.SharedIndexInformer]().Methods() {
		if method.Type.NumIn() > 0 && method.Type.In(0) == reflect.TypeFor[cache.ResourceEventHandler]() {
			adders = append(adders, method.Name)
		}
	}
	want := []string{"AddEventHandler", "AddEventHandlerWithOptions", "AddEventHandlerWithResyncPeriod"}
	if diff := cmp.Diff(want, adders); diff != "" {
		t.Errorf("the methods that add a handler (-gated +upstream):\n%s", diff)
	}
}

// TestGatedFactory_GatesEveryInformer asks each group, version and resource of the factory for its
// informer. It fails when upstream adds a group, which gatedFactory would pass on without the gate.
func TestGatedFactory_GatesEveryInformer(t *testing.T) {
	t.Parallel()
	factory := gatedFactory{informers.NewSharedInformerFactory(fake.NewClientset(), 0), gate{}}
	gated := 0
	for group, getGroup := range reflect.ValueOf(factory).Methods() {
		if signature := getGroup.Type(); signature.NumIn() != 0 || signature.NumOut() != 1 || signature.Out(0).Name() != "Interface" {
			continue
		}
		for version, getVersion := range getGroup.Call(nil)[0].Methods() {
			for resource, getInformer := range getVersion.Call(nil)[0].Methods() {
				typed := getInformer.Call(nil)[0].MethodByName("Informer").Call(nil)[0].Elem().Elem()
				if informer := typed.FieldByName("SharedIndexInformer").Elem(); informer.Type() != reflect.TypeFor[gatedInformer]() {
					t.Errorf("the informer of %s().%s().%s() has no gate: %v", group.Name, version.Name, resource.Name, informer.Type())
				}
				gated++
			}
		}
	}
	if gated < 50 {
		t.Errorf("%d informers were looked at", gated)
	}
	if _, err := factory.ForResource(corev1.SchemeGroupVersion.WithResource("pods")); err == nil {
		t.Error("ForResource returns an informer")
	}
}
