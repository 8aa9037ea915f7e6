package controllers

import (
	"context"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
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
		o := &onDemand{cc: &controllerContext{informers: factory}}
		_, err := o.build(ctx, "late", descriptor{build: func(_ context.Context, cc *controllerContext) (func(context.Context), error) {
			_, err := cc.informers.Core().V1().ConfigMaps().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
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
