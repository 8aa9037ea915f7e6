package controllers

import (
	"context"
	"reflect"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes/fake"
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
		o := &onDemand{
			cc:         &controllerContext{},
			informers:  factory,
			newClients: func(context.Context, string, descriptor) (clients, error) { return clients{}, nil },
		}
		_, err := o.build(ctx, "late", descriptor{build: func(_ context.Context, cc *controllerContext) (func(context.Context), error) {
			_, err := informersIn(cc, coreinformers.New).ConfigMaps().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
				AddFunc: func(object any) { seen <- object.(*corev1.ConfigMap).Name },
			})
			synctest.Wait() // every goroutine has done what it can
			if len(seen) > 0 {
				t.Error("the handler was called before the constructor has returned")
			}
			return nil, err
		}})
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if len(seen) != 1 || <-seen != "there" {
			t.Error("the handler was not called for the object that is there")
		}
	})
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
