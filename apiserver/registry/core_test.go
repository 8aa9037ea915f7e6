package registry_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	generated "k8s.io/kubernetes/pkg/generated/openapi"

	"byre/apiserver/apitest"
	"byre/apiserver/bootstrap"
	"byre/apiserver/handlers"
	"byre/apiserver/handlers/documents"
	"byre/apiserver/handlers/managedfields"
	"byre/apiserver/process"
	"byre/apiserver/registry"
	"byre/sqlstore"
	"byre/sqlstore/storetest"
	"byre/watch"
)

// server is the built-in groups behind real routes over a store in memory, without
// authentication (a header names the user) and without admission.
type server struct {
	client    kubernetes.Interface
	informers informers.SharedInformerFactory
	driver    sqlstore.Driver
	builtin   *registry.Builtin
	config    *rest.Config
	// api is the handler that the clients' requests go to.
	api http.Handler
	// storeErr is what the readiness check of the store returns.
	storeErr error
}

var (
	clusterIPs = net.IPNet{IP: net.IPv4(10, 9, 0, 0).To4(), Mask: net.CIDRMask(24, 32)}
	nodePorts  = utilnet.PortRange{Base: 30000, Size: 100}
)

// start serves until the test ends, with everything bootstrapped. adjust sets what tests
// vary.
func start(t *testing.T, adjust ...func(*registry.Config)) *server {
	t.Helper()
	s := &server{driver: storetest.NewModel()}
	feed := watch.New(s.driver, watch.Options{})
	store := sqlstore.New(s.driver, sqlstore.Options{Publish: feed.Publish})
	transport := &process.LoopbackTransport{}
	s.config = process.LoopbackConfig(transport)
	s.config.WarningHandler = rest.NoWarnings{}
	s.client = kubernetes.NewForConfigOrDie(s.config)
	factory := informers.NewSharedInformerFactoryWithOptions(s.client, 0,
		informers.WithCustomResyncConfig(registry.AllocatorResync()))
	s.informers = factory
	config := registry.Config{
		RESTOptions:             newGetter(store, feed),
		APIResourceConfigSource: registry.DefaultAPIResourceConfigSource(),
		Emulation:               thisRelease(),
		Client:                  s.client,
		Informers:               factory,
		EndpointSlices:          slicesOf{s.client},
		Authenticator:           authenticator.RequestFunc(knownToken),
		Authorizer:              authorizer.AuthorizerFunc(noEscalation),
		RuleResolver:            oneRule{},
		Tokens:                  registry.TokenConfig{Issuer: newIssuer(t)},
		APIAudiences:            authenticator.Audiences{"https://test.invalid"},
		Services:                registry.ServiceConfig{ClusterIPRange: clusterIPs, NodePortRange: nodePorts},
		EventTTL:                time.Hour,
		Kubelet:                 registry.DefaultKubelet(),
		ProxyTransport:          &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}, //nolint:gosec // a test's own server
		StoreReady:              func(context.Context) error { return s.storeErr },
		InProcess:               []string{"scheduler"},
	}
	for _, set := range adjust {
		set(&config)
	}
	var err error
	if s.builtin, err = registry.New(config); err != nil {
		t.Fatal(err)
	}
	s.api = s.handler(t)
	transport.Serve(s.api)

	ctx, cancel := context.WithCancel(context.Background())
	var data, work sync.WaitGroup
	dataCtx, stopData := context.WithCancel(context.Background())
	data.Go(func() { _ = feed.Run(dataCtx) })
	data.Go(func() { _ = store.Run(dataCtx) })
	factory.Start(ctx.Done())
	work.Go(func() {
		if err := s.builtin.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		cancel()
		work.Wait()
		transport.Close()
		transport.Wait()
		factory.Shutdown()
		stopData()
		data.Wait()
	})
	s.bootstrap(t)
	select {
	case <-s.builtin.Repaired():
	case <-time.After(time.Minute):
		t.Fatal("allocations aren't repaired")
	}
	return s
}

// slicesOf finds EndpointSlices through the API.
type slicesOf struct{ client kubernetes.Interface }

func (s slicesOf) GetEndpointSlices(namespace, service string) ([]*discoveryv1.EndpointSlice, error) {
	list, err := s.client.DiscoveryV1().EndpointSlices(namespace).List(context.Background(), metav1.ListOptions{
		LabelSelector: discoveryv1.LabelServiceName + "=" + service,
	})
	if err != nil {
		return nil, err
	}
	var all []*discoveryv1.EndpointSlice
	for i := range list.Items {
		all = append(all, &list.Items[i])
	}
	return all, nil
}

// bootstrap creates what a start of the program creates.
func (s *server) bootstrap(t *testing.T) {
	t.Helper()
	b := bootstrap.New(bootstrap.Config{
		Client:       s.client,
		Informers:    s.informers,
		ServiceCIDRs: []net.IPNet{clusterIPs},
		Service: bootstrap.Service{ClusterIP: net.IPv4(10, 9, 0, 1), AdvertiseAddress: net.IPv4(192, 0, 2, 7),
			AdvertisePort: 6443},
	})
	s.informers.Start(t.Context().Done())
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := b.Ensure(ctx); err != nil {
		for _, check := range b.Checks() {
			t.Logf("%s: %v", check.Name(), check.Check(nil))
		}
		t.Fatal(err)
	}
}

// handler is the API behind a filter that adds what upstream's handlers read from a
// request's context.
func (s *server) handler(t *testing.T) http.Handler {
	t.Helper()
	groups := s.builtin.Groups()
	names, err := handlers.ModelNames(groups)
	if err != nil {
		t.Fatal(err)
	}
	models := documents.NewModels("test", generated.GetOpenAPIDefinitions, legacyscheme.Scheme)
	api, err := handlers.New(handlers.Config{
		Groups: groups,
		Serving: handlers.Serving{
			Authorizer:    authorizer.AuthorizerFunc(noEscalation),
			TypeConverter: managedfields.NewTypeConverter(models.Schemas(names...)),
		},
		Discovery: documents.NewDiscovery("192.0.2.7:6443"),
		NotFound:  http.NotFoundHandler(),
	})
	if err != nil {
		t.Fatal(err)
	}
	return apitest.WithContext(asUser(api),
		&user.DefaultInfo{Name: user.APIServerUser, Groups: []string{user.SystemPrivilegedGroup}})
}

// userHeader names the user of a request; without it the user is the server itself.
const userHeader = "X-Test-User"

func asUser(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if name := req.Header.Get(userHeader); name != "" {
			who := &user.DefaultInfo{Name: name, Groups: []string{user.AllAuthenticated}}
			req = req.WithContext(request.WithUser(req.Context(), who))
		}
		h.ServeHTTP(w, req)
	})
}

// as returns a client of another user.
func (s *server) as(name string) kubernetes.Interface {
	config := rest.CopyConfig(s.config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(req *http.Request) (*http.Response, error) {
			req = req.Clone(req.Context())
			req.Header.Set(userHeader, name)
			return next.RoundTrip(req)
		})
	})
	return kubernetes.NewForConfigOrDie(config)
}

type roundTripper func(*http.Request) (*http.Response, error)

func (r roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return r(req) }

// noEscalation allows everything but escalate, bind and impersonate.
func noEscalation(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if (a.GetVerb() == "escalate" || a.GetVerb() == "bind") && a.GetUser().GetName() != user.APIServerUser {
		return authorizer.DecisionDeny, "not even you", nil
	}
	return authorizer.DecisionAllow, "", nil
}

// knownToken authenticates the token "good" as jane.
func knownToken(req *http.Request) (*authenticator.Response, bool, error) {
	if !strings.HasSuffix(req.Header.Get("Authorization"), " good") {
		return nil, false, nil
	}
	audiences, _ := authenticator.AudiencesFrom(req.Context())
	return &authenticator.Response{User: &user.DefaultInfo{Name: "jane"}, Audiences: audiences}, true, nil
}

// oneRule resolves the rules of every user to one rule.
type oneRule struct{}

func (oneRule) RulesFor(
	context.Context, user.Info, string,
) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	return []authorizer.ResourceRuleInfo{&authorizer.DefaultResourceRuleInfo{Verbs: []string{"get"},
		Resources: []string{"widgets"}}}, nil, false, nil
}

// TestBootstrap_SecondStartTakesNoRevision: with a real store, too, a second start takes no
// revision.
func TestBootstrap_SecondStartTakesNoRevision(t *testing.T) {
	t.Parallel()
	s := start(t)
	before, err := s.driver.State(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s.bootstrap(t)
	after, err := s.driver.State(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if before.Revision == 0 || after.Revision != before.Revision {
		t.Errorf("revision %d after the first start, %d after the second", before.Revision, after.Revision)
	}
	kubernetes, err := s.client.CoreV1().Services("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
	if err != nil || kubernetes.Spec.ClusterIP != "10.9.0.1" {
		t.Errorf("kubernetes Service %+v, %v", kubernetes, err)
	}
}

func service(name string, kind corev1.ServiceType, nodePort int32) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{
			Type:  kind,
			Ports: []corev1.ServicePort{{Name: "http", Port: 80, NodePort: nodePort, TargetPort: intstr.FromInt32(8080)}},
		},
	}
}

// TestService_AllocatesAndReleases: a Service gets an address and a port of the ranges,
// which no other Service gets until it is deleted.
func TestService_AllocatesAndReleases(t *testing.T) {
	t.Parallel()
	s := start(t)
	services := s.client.CoreV1().Services("default")
	ctx := t.Context()

	made, err := services.Create(ctx, service("a", corev1.ServiceTypeNodePort, 0), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ip, port := made.Spec.ClusterIP, made.Spec.Ports[0].NodePort
	if !clusterIPs.Contains(net.ParseIP(ip)) || !nodePorts.Contains(int(port)) {
		t.Errorf("got %s and %d", ip, port)
	}
	if _, err := s.client.NetworkingV1().IPAddresses().Get(ctx, ip, metav1.GetOptions{}); err != nil {
		t.Errorf("IPAddress: %v", err)
	}
	if _, err := services.Create(ctx, service("b", corev1.ServiceTypeNodePort, port),
		metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("a taken node port: %v", err)
	}
	taken := service("c", corev1.ServiceTypeClusterIP, 0)
	taken.Spec.ClusterIP = ip
	if _, err := services.Create(ctx, taken, metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("a taken address: %v", err)
	}

	if err := services.Delete(ctx, "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	storetest.Eventually(t, "the address is given back", func() bool {
		_, err := s.client.NetworkingV1().IPAddresses().Get(ctx, ip, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
	again := service("b", corev1.ServiceTypeNodePort, port)
	again.Spec.ClusterIP = ip
	storetest.Eventually(t, "both are free again", func() bool {
		_, err := services.Create(ctx, again, metav1.CreateOptions{})
		return err == nil
	})
}

// TestService_DryRunAllocatesNothing: a dry run allocates no address and no port.
func TestService_DryRunAllocatesNothing(t *testing.T) {
	t.Parallel()
	s := start(t)
	before, err := s.driver.State(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	made, err := s.client.CoreV1().Services("default").Create(t.Context(), service("a", corev1.ServiceTypeNodePort, 30005),
		metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err != nil || made.Spec.Ports[0].NodePort != 30005 {
		t.Fatalf("%+v, %v", made, err)
	}
	after, err := s.driver.State(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if after.Revision != before.Revision {
		t.Errorf("revision went from %d to %d", before.Revision, after.Revision)
	}
	if _, err := s.client.CoreV1().Services("default").Create(t.Context(), service("a", corev1.ServiceTypeNodePort, 30005),
		metav1.CreateOptions{}); err != nil {
		t.Errorf("for real: %v", err)
	}
}

// TestService_ChangeOfTypeReleasesThePort: a change to a type without a node port releases
// the port.
func TestService_ChangeOfTypeReleasesThePort(t *testing.T) {
	t.Parallel()
	s := start(t)
	services := s.client.CoreV1().Services("default")
	made, err := services.Create(t.Context(), service("a", corev1.ServiceTypeNodePort, 30006), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	made.Spec.Type = corev1.ServiceTypeClusterIP
	made.Spec.Ports[0].NodePort = 0
	if _, err := services.Update(t.Context(), made, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := services.Create(t.Context(), service("b", corev1.ServiceTypeNodePort, 30006),
		metav1.CreateOptions{}); err != nil {
		t.Errorf("the port isn't free: %v", err)
	}
}

var podTemplate = corev1.PodTemplateSpec{
	ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "a"}},
	Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
}

func newPod(t *testing.T, s *server, name string) *corev1.Pod {
	t.Helper()
	pod, err := s.client.CoreV1().Pods("default").Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": "a"}},
		Spec:       podTemplate.Spec,
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return pod
}

// TestBinding_PutsAPodOnANodeOnce: a binding assigns a Pod to a node; a second binding is a
// conflict.
func TestBinding_PutsAPodOnANodeOnce(t *testing.T) {
	t.Parallel()
	s := start(t)
	newPod(t, s, "a")
	bind := func(node string) error {
		return s.client.CoreV1().Pods("default").Bind(t.Context(), &corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{Name: "a"}, Target: corev1.ObjectReference{Kind: "Node", Name: node},
		}, metav1.CreateOptions{})
	}
	if err := bind("n1"); err != nil {
		t.Fatal(err)
	}
	if err := bind("n2"); !apierrors.IsConflict(err) {
		t.Errorf("bound again: %v", err)
	}
	pod, err := s.client.CoreV1().Pods("default").Get(t.Context(), "a", metav1.GetOptions{})
	if err != nil || pod.Spec.NodeName != "n1" {
		t.Errorf("on node %q, %v", pod.Spec.NodeName, err)
	}
}

// TestEviction_RespectsTheDisruptionBudget: an eviction deletes a running Pod only when its
// disruption budget allows it.
func TestEviction_RespectsTheDisruptionBudget(t *testing.T) {
	t.Parallel()
	s := start(t)
	ctx := t.Context()
	pod := newPod(t, s, "a")
	pod.Status.Phase = corev1.PodRunning
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	if _, err := s.client.CoreV1().Pods("default").UpdateStatus(ctx, pod, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	budgets := s.client.PolicyV1().PodDisruptionBudgets("default")
	one := intstr.FromInt32(1)
	budget, err := budgets.Create(ctx, &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "b"},
		Spec: policyv1.PodDisruptionBudgetSpec{MinAvailable: &one,
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "a"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	evict := func() error {
		// The typed client would retry ten times after the Retry-After of the answer.
		return s.client.PolicyV1().RESTClient().Post().MaxRetries(0).AbsPath("/api/v1/namespaces/default/pods/a/eviction").
			Body(&policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a"}}).Do(ctx).Error()
	}
	if err := evict(); !apierrors.IsTooManyRequests(err) {
		t.Errorf("without an allowed disruption: %v", err)
	}
	budget.Status = policyv1.PodDisruptionBudgetStatus{ObservedGeneration: budget.Generation, DisruptionsAllowed: 1,
		ExpectedPods: 1, CurrentHealthy: 1, DesiredHealthy: 1}
	if _, err := budgets.UpdateStatus(ctx, budget, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := evict(); err != nil {
		t.Errorf("with an allowed disruption: %v", err)
	}
}

// TestScale_ReadsAndWritesReplicas: the scale subresource reads and writes the replicas of
// each scalable kind.
func TestScale_ReadsAndWritesReplicas(t *testing.T) {
	t.Parallel()
	s := start(t)
	ctx := t.Context()
	selector := &metav1.LabelSelector{MatchLabels: podTemplate.Labels}
	deployments := s.client.AppsV1().Deployments("default")
	if _, err := deployments.Create(ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "a"},
		Spec:       appsv1.DeploymentSpec{Selector: selector, Template: podTemplate},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	scale, err := deployments.GetScale(ctx, "a", metav1.GetOptions{})
	if err != nil || scale.Spec.Replicas != 1 || scale.Status.Selector != "app=a" {
		t.Fatalf("scale %+v, %v", scale, err)
	}
	scale.Spec.Replicas = 3
	if _, err := deployments.UpdateScale(ctx, "a", scale, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	deployment, err := deployments.Get(ctx, "a", metav1.GetOptions{})
	if err != nil || *deployment.Spec.Replicas != 3 {
		t.Errorf("%d replicas, %v", *deployment.Spec.Replicas, err)
	}
	controllers := s.client.CoreV1().ReplicationControllers("default")
	if _, err := controllers.Create(ctx, &corev1.ReplicationController{
		ObjectMeta: metav1.ObjectMeta{Name: "rc"},
		Spec:       corev1.ReplicationControllerSpec{Selector: podTemplate.Labels, Template: &podTemplate},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if scale, err := controllers.GetScale(ctx, "rc", metav1.GetOptions{}); err != nil || scale.Kind != "Scale" &&
		scale.Spec.Replicas != 1 {
		t.Errorf("scale of a replication controller %+v, %v", scale, err)
	}
}

// TestToken_IsBoundToItsRequest: a token has the audiences, the lifetime and the bound
// object of its request.
func TestToken_IsBoundToItsRequest(t *testing.T) {
	t.Parallel()
	s := start(t)
	accounts := s.client.CoreV1().ServiceAccounts("default")
	if _, err := accounts.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "a"}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: *podTemplate.Spec.DeepCopy()}
	pod.Spec.ServiceAccountName = "a"
	if _, err := s.client.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	ask := func(pod string) (*authenticationv1.TokenRequest, error) {
		request := &authenticationv1.TokenRequest{}
		if pod != "" {
			request.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod}
		}
		return accounts.CreateToken(t.Context(), "a", request, metav1.CreateOptions{})
	}
	for _, pod := range []string{"", "a"} {
		if token, err := ask(pod); err != nil || token.Status.Token == "" {
			t.Errorf("bound to %q: %+v, %v", pod, token, err)
		}
	}
	if _, err := ask("no-such-pod"); !apierrors.IsNotFound(err) {
		t.Errorf("bound to a pod that isn't there: %v", err)
	}
}

// TestNamespace_IsDeletedAfterItsFinalizer: a namespace is deleted only when its finalizer is
// removed.
func TestNamespace_IsDeletedAfterItsFinalizer(t *testing.T) {
	t.Parallel()
	s := start(t)
	namespaces := s.client.CoreV1().Namespaces()
	if _, err := namespaces.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "a"}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := namespaces.Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	namespace, err := namespaces.Get(t.Context(), "a", metav1.GetOptions{})
	if err != nil || namespace.Status.Phase != corev1.NamespaceTerminating {
		t.Fatalf("%+v, %v", namespace, err)
	}
	namespace.Spec.Finalizers = nil
	if _, err := namespaces.Finalize(t.Context(), namespace, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := namespaces.Get(t.Context(), "a", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("after it was finalized: %v", err)
	}
}

// TestEvents_AreOfBothGroupsAndExpire: an Event is visible in both API groups and expires.
func TestEvents_AreOfBothGroupsAndExpire(t *testing.T) {
	t.Parallel()
	s := start(t)
	began := time.Now()
	if _, err := s.client.CoreV1().Events("default").Create(t.Context(), &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Name: "a", Namespace: "default"},
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: "a"},
		Reason:         "Scheduled", Message: "on node n1", Type: corev1.EventTypeNormal,
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	event, err := s.client.EventsV1().Events("default").Get(t.Context(), "a", metav1.GetOptions{})
	if err != nil || event.Note != "on node n1" || event.Regarding.Name != "a" {
		t.Errorf("of events.k8s.io: %+v, %v", event, err)
	}
	record, _, err := s.driver.Get(t.Context(), sqlstore.Key{Resource: "events", Namespace: "default", Name: "a"})
	if err != nil {
		t.Fatal(err)
	}
	if life := record.Expires.Sub(began); life < 59*time.Minute || life > 61*time.Minute {
		t.Errorf("it lives for %v", life)
	}
}

// TestCertificate_ApprovalIsASubresource: only the subresource approval changes a request's
// approval.
func TestCertificate_ApprovalIsASubresource(t *testing.T) {
	t.Parallel()
	s := start(t)
	requests := s.client.CertificatesV1().CertificateSigningRequests()
	made, err := requests.Create(t.Context(), &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: "a"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request: certificateRequest(t), SignerName: "example.com/signer",
			Usages: []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	made.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateApproved,
		Status: corev1.ConditionTrue, Reason: "Test"}}
	approved, err := requests.UpdateApproval(t.Context(), "a", made, metav1.UpdateOptions{})
	if err != nil || len(approved.Status.Conditions) != 1 {
		t.Errorf("%+v, %v", approved, err)
	}
}

// TestRBAC_PreventsEscalation: a user cannot grant rights that they do not have.
func TestRBAC_PreventsEscalation(t *testing.T) {
	t.Parallel()
	s := start(t)
	role := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "all"},
		Rules:      []rbacv1.PolicyRule{{Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}}},
	}
	if _, err := s.as("mallory").RbacV1().ClusterRoles().Create(t.Context(), role,
		metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("mallory: %v", err)
	}
	if _, err := s.client.RbacV1().ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Errorf("the server: %v", err)
	}
}

// TestReviews_AskTheServersAuthorizer: each kind of review asks the server's own
// authenticator or authorizer.
func TestReviews_AskTheServersAuthorizer(t *testing.T) {
	t.Parallel()
	s := start(t)
	ctx := t.Context()
	for token, want := range map[string]bool{"good": true, "bad": false} {
		review, err := s.client.AuthenticationV1().TokenReviews().Create(ctx,
			&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
		if err != nil || review.Status.Authenticated != want || want && review.Status.User.Username != "jane" {
			t.Errorf("token %s: %+v, %v", token, review, err)
		}
	}
	self, err := s.as("alice").AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{},
		metav1.CreateOptions{})
	if err != nil || self.Status.UserInfo.Username != "alice" {
		t.Errorf("self: %+v, %v", self, err)
	}

	for verb, want := range map[string]bool{"get": true, "escalate": false} {
		attributes := &authorizationv1.ResourceAttributes{Namespace: "default", Verb: verb, Resource: "roles"}
		of, err := s.client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
			Spec: authorizationv1.SubjectAccessReviewSpec{User: "bob", ResourceAttributes: attributes}}, metav1.CreateOptions{})
		if err != nil || of.Status.Allowed != want {
			t.Errorf("may bob %s: %+v, %v", verb, of, err)
		}
		local, err := s.client.AuthorizationV1().LocalSubjectAccessReviews("default").Create(ctx,
			&authorizationv1.LocalSubjectAccessReview{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default"},
				Spec:       authorizationv1.SubjectAccessReviewSpec{User: "bob", ResourceAttributes: attributes}},
			metav1.CreateOptions{})
		if err != nil || local.Status.Allowed != want {
			t.Errorf("may bob %s here: %+v, %v", verb, local, err)
		}
		own, err := s.as("alice").AuthorizationV1().SelfSubjectAccessReviews().Create(ctx,
			&authorizationv1.SelfSubjectAccessReview{
				Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: attributes}}, metav1.CreateOptions{})
		if err != nil || own.Status.Allowed != want {
			t.Errorf("may alice %s: %+v, %v", verb, own, err)
		}
	}
	rules, err := s.as("alice").AuthorizationV1().SelfSubjectRulesReviews().Create(ctx,
		&authorizationv1.SelfSubjectRulesReview{
			Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: "default"}}, metav1.CreateOptions{})
	if err != nil || len(rules.Status.ResourceRules) != 1 || rules.Status.ResourceRules[0].Verbs[0] != "get" {
		t.Errorf("rules: %+v, %v", rules, err)
	}
}

// TestComponentStatus_ShowsTheStore: the component status of etcd shows the state of byre's
// store.
func TestComponentStatus_ShowsTheStore(t *testing.T) {
	t.Parallel()
	s := start(t)
	status := func() corev1.ComponentCondition {
		component, err := s.client.CoreV1().ComponentStatuses().Get(t.Context(), "etcd-0", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return component.Conditions[0]
	}
	if got := status(); got.Status != corev1.ConditionTrue {
		t.Errorf("ready: %+v", got)
	}
	if component, err := s.client.CoreV1().ComponentStatuses().Get(t.Context(), "scheduler",
		metav1.GetOptions{}); err != nil || component.Conditions[0].Status != corev1.ConditionTrue {
		t.Errorf("the scheduler in process: %+v, %v", component, err)
	}
	s.storeErr = errors.New("no disk")
	if got := status(); got.Status != corev1.ConditionFalse || got.Error != "no disk" {
		t.Errorf("not ready: %+v", got)
	}
}

func certificateRequest(t *testing.T) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader,
		&x509.CertificateRequest{Subject: pkix.Name{CommonName: "jane"}}, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}
