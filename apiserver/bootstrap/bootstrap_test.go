package bootstrap_test

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	networkingv1 "k8s.io/api/networking/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	flowcontrol "k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"byre/apiserver/bootstrap"
)

// config is the configuration of a server that is alone on its database.
func config(t *testing.T, client *fake.Clientset) bootstrap.Config {
	t.Helper()
	factory := informers.NewSharedInformerFactory(client, 0)
	t.Cleanup(factory.Shutdown)
	return bootstrap.Config{
		Client:       client,
		Informers:    factory,
		ServiceCIDRs: cidrs(t, "10.0.0.0/24"),
		Service: bootstrap.Service{
			ClusterIP:        net.IPv4(10, 0, 0, 1),
			AdvertiseAddress: net.IPv4(192, 0, 2, 7),
			AdvertisePort:    6443,
		},
	}
}

func cidrs(t *testing.T, ranges ...string) []net.IPNet {
	t.Helper()
	var all []net.IPNet
	for _, r := range ranges {
		_, cidr, err := net.ParseCIDR(r)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, *cidr)
	}
	return all
}

// start makes what c describes and starts its informers.
func start(t *testing.T, c bootstrap.Config) *bootstrap.Bootstrap {
	t.Helper()
	b := bootstrap.New(c)
	c.Informers.StartWithContext(t.Context())
	c.Informers.WaitForCacheSyncWithContext(t.Context())
	return b
}

func ensure(t *testing.T, c bootstrap.Config) *bootstrap.Bootstrap {
	t.Helper()
	b := start(t, c)
	if err := b.Ensure(t.Context()); err != nil {
		t.Fatal(err)
	}
	return b
}

// writes returns the writes among the requests that the client has received.
func writes(client *fake.Clientset) []string {
	var all []string
	for _, action := range client.Actions() {
		switch action.GetVerb() {
		case "get", "list", "watch":
		default:
			all = append(all, action.GetVerb()+" "+action.GetResource().Resource+"/"+action.GetSubresource())
		}
	}
	return all
}

// TestBootstrap_SecondStartWritesNothing: a start on a complete cluster writes nothing.
func TestBootstrap_SecondStartWritesNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("takes more than a second")
	}
	client := fake.NewClientset()
	ensure(t, config(t, client))
	if len(writes(client)) < 100 {
		t.Fatalf("the first start made %d writes only: %v", len(writes(client)), writes(client))
	}
	client.ClearActions()
	ensure(t, config(t, client))
	if again := writes(client); len(again) > 0 {
		t.Errorf("the second start wrote %v", again)
	}
}

// TestBootstrap_FirstStartCreatesObjects: the first start creates these objects, beside the
// RBAC policy.
func TestBootstrap_FirstStartCreatesObjects(t *testing.T) {
	if testing.Short() {
		t.Skip("takes more than a second")
	}
	client := fake.NewClientset()
	b := ensure(t, config(t, client))
	ctx := t.Context()

	for _, name := range []string{"default", "kube-system", "kube-public", "kube-node-lease"} {
		if _, err := client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{}); err != nil {
			t.Errorf("namespace: %v", err)
		}
	}
	for name, value := range map[string]int32{"system-node-critical": 2000001000, "system-cluster-critical": 2000000000} {
		class, err := client.SchedulingV1().PriorityClasses().Get(ctx, name, metav1.GetOptions{})
		if err != nil || class.Value != value {
			t.Errorf("priority class %s: value %d, want %d, %v", name, class.Value, value, err)
		}
	}
	schemas, err := client.FlowcontrolV1().FlowSchemas().List(ctx, metav1.ListOptions{})
	if want := len(flowcontrol.MandatoryFlowSchemas) + len(flowcontrol.SuggestedFlowSchemas); err != nil ||
		len(schemas.Items) != want {
		t.Errorf("%d flow schemas, want %d, %v", len(schemas.Items), want, err)
	}
	levels, err := client.FlowcontrolV1().PriorityLevelConfigurations().List(ctx, metav1.ListOptions{})
	want := len(flowcontrol.MandatoryPriorityLevelConfigurations) + len(flowcontrol.SuggestedPriorityLevelConfigurations)
	if err != nil || len(levels.Items) != want {
		t.Errorf("%d priority levels, want %d, %v", len(levels.Items), want, err)
	}
	service, err := client.CoreV1().Services("default").Get(ctx, "kubernetes", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if port := service.Spec.Ports[0]; service.Spec.ClusterIP != "10.0.0.1" || port.Port != 443 ||
		port.TargetPort.IntValue() != 6443 {
		t.Errorf("kubernetes Service: %+v", service.Spec)
	}
	for _, check := range b.Checks() {
		if err := check.Check(nil); err != nil {
			t.Errorf("check %s: %v", check.Name(), err)
		}
	}
	select {
	case <-b.Done():
	default:
		t.Error("the channel Made is not closed")
	}
}

// TestNamespaces_AreRecreated: a deleted system namespace is created again.
func TestNamespaces_AreRecreated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		stop := run(t, config(t, client))
		defer stop()
		if err := client.CoreV1().Namespaces().Delete(t.Context(), "kube-public", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if _, err := client.CoreV1().Namespaces().Get(t.Context(), "kube-public", metav1.GetOptions{}); err != nil {
			t.Error(err)
		}
	})
}

// TestBootstrap_BeginsAgainInANewEpoch: the roles and priority classes, which are else written once, are there again
// after they were lost.
func TestBootstrap_BeginsAgainInANewEpoch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		c := config(t, client)
		epochs := []chan struct{}{make(chan struct{}), make(chan struct{})}
		var epoch atomic.Int32
		c.EpochEnded = func() <-chan struct{} { return epochs[epoch.Load()] }
		defer run(t, c)()
		role, class := client.RbacV1().ClusterRoles(), client.SchedulingV1().PriorityClasses()
		if err := errors.Join(role.Delete(t.Context(), "cluster-admin", metav1.DeleteOptions{}),
			class.Delete(t.Context(), "system-node-critical", metav1.DeleteOptions{})); err != nil {
			t.Fatal(err)
		}
		epoch.Store(1)
		close(epochs[0])
		synctest.Wait()
		_, roleErr := role.Get(t.Context(), "cluster-admin", metav1.GetOptions{})
		_, classErr := class.Get(t.Context(), "system-node-critical", metav1.GetOptions{})
		if err := errors.Join(roleErr, classErr); err != nil {
			t.Error(err)
		}
	})
}

// TestBootstrap_BeginsAgainInAnEpochThatEndsDuringTheStart: what a step has written is there again although the store
// lost it before the last step was done.
func TestBootstrap_BeginsAgainInAnEpochThatEndsDuringTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		c := config(t, client)
		epochs := []chan struct{}{make(chan struct{}), make(chan struct{})}
		var epoch atomic.Int32
		c.EpochEnded = func() <-chan struct{} { return epochs[epoch.Load()] }
		classes := schedulingv1.SchemeGroupVersion.WithResource("priorityclasses")
		client.PrependReactor("create", "services", func(clienttesting.Action) (bool, runtime.Object, error) {
			if epoch.Load() == 1 {
				return false, nil, nil
			}
			if client.Tracker().Delete(classes, "", "system-node-critical") == nil {
				epoch.Store(1)
				close(epochs[0])
			}
			return true, nil, errors.New("not yet")
		})
		defer run(t, c)()
		if _, err := client.SchedulingV1().PriorityClasses().Get(t.Context(), "system-node-critical",
			metav1.GetOptions{}); err != nil {
			t.Error(err)
		}
	})
}

// TestServiceCIDR_ExistingDefaultIsKept: an existing default ServiceCIDR keeps its ranges
// and its condition; a missing second family and a missing condition are added.
func TestServiceCIDR_ExistingDefaultIsKept(t *testing.T) {
	if testing.Short() {
		t.Skip("takes more than a second")
	}
	ready := metav1.Condition{Type: networkingv1.ServiceCIDRConditionReady, Status: metav1.ConditionTrue}
	notReady := metav1.Condition{Type: networkingv1.ServiceCIDRConditionReady, Status: metav1.ConditionFalse}
	for name, test := range map[string]struct {
		existing   []string
		condition  *metav1.Condition
		configured []string
		want       []string
		wantReady  *metav1.ConditionStatus
	}{
		"missing": {configured: []string{"10.0.0.0/24"}, want: []string{"10.0.0.0/24"},
			wantReady: &ready.Status},
		"missing, two families": {configured: []string{"10.0.0.0/24", "fd00::/112"},
			want: []string{"10.0.0.0/24", "fd00::/112"}, wantReady: &ready.Status},
		"without condition": {existing: []string{"10.0.0.0/24"}, configured: []string{"10.0.0.0/24"},
			want: []string{"10.0.0.0/24"}, wantReady: &ready.Status},
		"declared not ready stays": {existing: []string{"10.0.0.0/24"}, condition: &notReady,
			configured: []string{"10.0.0.0/24"}, want: []string{"10.0.0.0/24"}, wantReady: &notReady.Status},
		"second family is added": {existing: []string{"10.0.0.0/24"}, condition: &ready,
			configured: []string{"10.0.0.0/24", "fd00::/112"}, want: []string{"10.0.0.0/24", "fd00::/112"},
			wantReady: &ready.Status},
		"another range stays": {existing: []string{"10.1.0.0/16"}, configured: []string{"10.0.0.0/24"},
			want: []string{"10.1.0.0/16"}},
	} {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset()
			if test.existing != nil {
				cidr := &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"},
					Spec: networkingv1.ServiceCIDRSpec{CIDRs: test.existing}}
				if test.condition != nil {
					cidr.Status.Conditions = []metav1.Condition{*test.condition}
				}
				if err := client.Tracker().Add(cidr); err != nil {
					t.Fatal(err)
				}
			}
			c := config(t, client)
			c.ServiceCIDRs = cidrs(t, test.configured...)
			ensure(t, c)
			got, err := client.NetworkingV1().ServiceCIDRs().Get(t.Context(), "kubernetes", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got.Spec.CIDRs, test.want) {
				t.Errorf("ranges %v, want %v", got.Spec.CIDRs, test.want)
			}
			condition := meta.FindStatusCondition(got.Status.Conditions, networkingv1.ServiceCIDRConditionReady)
			switch {
			case test.wantReady == nil && condition != nil:
				t.Errorf("condition %+v, want none", condition)
			case test.wantReady != nil && (condition == nil || condition.Status != *test.wantReady):
				t.Errorf("condition %+v, want %s", condition, *test.wantReady)
			}
		})
	}
}

// TestServiceCIDR_ADifferenceIsLoggedOnce: a default ServiceCIDR that differs from the configured ranges is logged when
// it changes, and not at each repair.
func TestServiceCIDR_ADifferenceIsLoggedOnce(t *testing.T) {
	if testing.Short() {
		t.Skip("takes more than a second")
	}
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		c := config(t, client)
		var logged atomic.Int32
		c.Logger = funcr.New(func(_, line string) {
			if strings.Contains(line, "differs from the configured ranges") {
				logged.Add(1)
			}
		}, funcr.Options{})
		defer run(t, c)()
		for i, other := range []string{"10.1.0.0/16", "10.2.0.0/16"} {
			cidr := &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"},
				Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{other}}}
			if _, err := client.NetworkingV1().ServiceCIDRs().Update(t.Context(), cidr, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
			synctest.Wait()
			if got := logged.Load(); got != int32(i+1) {
				t.Errorf("%s: logged %d times, want %d", other, got, i+1)
			}
		}
	})
}

// TestBootstrap_RetriesAFailingStep: a failing step is retried and the health check names
// its error; the other steps complete.
func TestBootstrap_RetriesAFailingStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		var broken atomic.Bool
		broken.Store(true)
		client.PrependReactor("create", "priorityclasses", func(clienttesting.Action) (bool, runtime.Object, error) {
			if broken.Load() {
				return true, nil, errors.New("database is on fire")
			}
			return false, nil, nil
		})
		b := start(t, config(t, client))
		done := make(chan error, 1)
		go func() { done <- b.Ensure(t.Context()) }()
		time.Sleep(time.Second)
		synctest.Wait()
		for _, check := range b.Checks() {
			err := check.Check(nil)
			if failing := err != nil &&
				strings.Contains(err.Error(), "on fire"); failing != strings.HasPrefix(check.Name(), "poststarthook/scheduling/") {
				t.Errorf("check %s: %v", check.Name(), err)
			}
		}
		broken.Store(false)
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestBootstrap_AnotherReplicaCreatesFirst: objects that another replica creates at the same time
// are as good as its own.
func TestBootstrap_AnotherReplicaCreatesFirst(t *testing.T) {
	for _, resource := range []string{"flowschemas", "prioritylevelconfigurations"} {
		t.Run(resource, func(t *testing.T) {
			client := fake.NewClientset()
			var others atomic.Int32
			client.PrependReactor("create", resource, func(action clienttesting.Action) (bool, runtime.Object, error) {
				create := action.(clienttesting.CreateAction)
				if err := client.Tracker().Create(create.GetResource(), create.GetObject(), ""); err == nil {
					others.Add(1)
				}
				return false, nil, nil
			})
			b := start(t, config(t, client))
			if err := b.Ensure(t.Context()); err != nil {
				t.Fatal(err)
			}
			if others.Load() == 0 {
				t.Error("no other replica has created an object")
			}
			for _, write := range writes(client) {
				if strings.HasPrefix(write, "update "+resource) || strings.HasPrefix(write, "delete "+resource) {
					t.Errorf("wrote: %s", write)
				}
			}
		})
	}
}

// TestBootstrap_SkipsDisabledAPIs: a step whose API is off is skipped.
func TestBootstrap_SkipsDisabledAPIs(t *testing.T) {
	client := fake.NewClientset()
	c := config(t, client)
	resources := serverstorage.NewResourceConfig()
	resources.EnableVersions(schema.GroupVersion{Version: "v1"})
	c.APIResourceConfigSource = resources
	ensure(t, c)
	for _, write := range writes(client) {
		if !strings.HasPrefix(write, "create namespaces") && !strings.HasPrefix(write, "create services") {
			t.Errorf("wrote: %s", write)
		}
	}
}

// run runs c until all steps are done; the returned function stops it.
func run(t *testing.T, c bootstrap.Config) (stop func()) {
	t.Helper()
	b := start(t, c)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 2)
	go func() { done <- b.Run(ctx) }()
	go func() { done <- b.PublishEndpoints(ctx) }()
	<-b.Done()
	synctest.Wait()
	return func() {
		cancel()
		for range cap(done) {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	}
}
