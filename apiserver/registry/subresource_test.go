package registry_test

import (
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"byre/sqlstore"
)

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
		Spec:       policyv1.PodDisruptionBudgetSpec{MinAvailable: &one, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "a"}}},
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
	budget.Status = policyv1.PodDisruptionBudgetStatus{ObservedGeneration: budget.Generation, DisruptionsAllowed: 1, ExpectedPods: 1, CurrentHealthy: 1, DesiredHealthy: 1}
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
	if scale, err := controllers.GetScale(ctx, "rc", metav1.GetOptions{}); err != nil || scale.Kind != "Scale" && scale.Spec.Replicas != 1 {
		t.Errorf("scale of a replication controller %+v, %v", scale, err)
	}
}

// TestToken_IsBoundToItsRequest: a token has the audiences, the lifetime and the bound
// object of its request.
func TestToken_IsBoundToItsRequest(t *testing.T) {
	t.Parallel()
	s := start(t)
	accounts := s.client.CoreV1().ServiceAccounts("default")
	if _, err := accounts.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{}); err != nil {
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
	if _, err := namespaces.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{}); err != nil {
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
			Request: certificateRequest(t), SignerName: "example.com/signer", Usages: []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	made.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "Test"}}
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
	if _, err := s.as("mallory").RbacV1().ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("mallory: %v", err)
	}
	if _, err := s.client.RbacV1().ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Errorf("the server: %v", err)
	}
}
