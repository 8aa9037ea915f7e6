package e2e

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	registrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"byre/e2e/servers"
	"byre/sqlstore/storetest"
)

// testAdmissionConfig checks that the plugins are enabled and configured as the file says.
func testAdmissionConfig(t *testing.T, site *site, s *servers.Server) {
	const ns = "admitted"
	c := client(t, s)
	createNamespace(t, c, ns)
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "robot"}}
	if _, err := c.CoreV1().ServiceAccounts(ns).Create(t.Context(), account, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.CoreV1().Pods(ns).Create(t.Context(), newPod("exposed", true),
		metav1.CreateOptions{}); !apierrors.IsForbidden(err) ||
		!strings.Contains(err.Error(), `violates PodSecurity "baseline:latest"`) {
		t.Errorf("against the default of PodSecurity: %v", err)
	}
	pod, err := c.CoreV1().Pods(ns).Create(t.Context(), newPod("plain", false), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := pod.Spec.Containers[0].ImagePullPolicy; got != corev1.PullAlways {
		t.Errorf("AlwaysPullImages leaves %s", got)
	}
	testNodeRestriction(t, s, ns, pod)
	testWebhookCredentials(t, site, s, ns)
}

func newPod(name string, exposed bool) *corev1.Pod {
	no := false
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			ServiceAccountName: "robot", AutomountServiceAccountToken: &no,
			NodeName: "own", HostNetwork: exposed,
			Containers: []corev1.Container{{Name: "c", Image: "i:1", ImagePullPolicy: corev1.PullNever}},
		},
	}
}

// testNodeRestriction sends requests as a node, which may change its own Node and the status
// of its Pods, and nothing of another node's.
func testNodeRestriction(t *testing.T, s *servers.Server, ns string, pod *corev1.Pod) {
	t.Helper()
	config := s.Config(servers.AdminToken)
	config.Impersonate = rest.ImpersonationConfig{UserName: "system:node:own",
		Groups: []string{"system:nodes", "system:authenticated"}}
	node := clientFor(t, config)
	if _, err := node.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "own"}},
		metav1.CreateOptions{}); err != nil {
		t.Errorf("a node registers itself: %v", err)
	}
	for what, test := range map[string]struct {
		err  error
		want string
	}{
		"another node": {err: second(node.CoreV1().Nodes().Create(t.Context(),
			&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "other"}}, metav1.CreateOptions{})),
			want: `node "own" is not allowed to modify node "other"`},
		"a label that is reserved": {err: labelNode(t, node, "node-restriction.kubernetes.io/a"),
			want: "is not allowed to modify labels: node-restriction.kubernetes.io/a"},
		"a label of its own": {err: labelNode(t, node, "example.com/a")},
		"a Pod of its own making": {err: second(node.CoreV1().Pods(ns).Create(t.Context(), newPod("made", false),
			metav1.CreateOptions{})), want: "pod does not have"},
		"its Pod's status": {err: second(node.CoreV1().Pods(ns).UpdateStatus(t.Context(), pod,
			metav1.UpdateOptions{}))},
	} {
		if test.want == "" && test.err != nil || test.want != "" &&
			(!apierrors.IsForbidden(test.err) || !strings.Contains(test.err.Error(), test.want)) {
			t.Errorf("%s: %v", what, test.err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

func labelNode(t *testing.T, c kubernetes.Interface, label string) error {
	t.Helper()
	return second(c.CoreV1().Nodes().Patch(t.Context(), "own", "application/merge-patch+json",
		[]byte(`{"metadata":{"labels":{"`+label+`":"1"}}}`), metav1.PatchOptions{}))
}

// testWebhookCredentials checks the token with which a webhook was called, and the audit
// annotations that the webhook returned.
func testWebhookCredentials(t *testing.T, site *site, s *servers.Server, ns string) {
	t.Helper()
	c := client(t, s)
	none := registrationv1.SideEffectClassNone
	webhook := func(path string) registrationv1.WebhookClientConfig {
		url := site.hooks.URL + path
		return registrationv1.WebhookClientConfig{URL: &url, CABundle: site.web.PEM}
	}
	here := &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: ns}}
	rules := []registrationv1.RuleWithOperations{{
		Operations: []registrationv1.OperationType{registrationv1.Create},
		Rule: registrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"},
			Resources: []string{"configmaps"}},
	}}
	_, err := c.AdmissionregistrationV1().MutatingWebhookConfigurations().Create(t.Context(),
		&registrationv1.MutatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: "who"},
			Webhooks: []registrationv1.MutatingWebhook{{Name: "who.example.com", ClientConfig: webhook("/admit/who/token"),
				Rules:             rules,
				NamespaceSelector: here, SideEffects: &none, AdmissionReviewVersions: []string{"v1"}}},
		}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(t.Context(),
		&registrationv1.ValidatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: "warn"},
			Webhooks: []registrationv1.ValidatingWebhook{{Name: "warn.example.com", ClientConfig: webhook("/admit/warn"),
				Rules:             rules,
				NamespaceSelector: here, SideEffects: &none, AdmissionReviewVersions: []string{"v1"}}},
		}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "called-"}}
	storetest.EventuallySucceeds(t, "the webhooks", func() error {
		made, err := c.CoreV1().ConfigMaps(ns).Create(t.Context(), cm, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		if got := made.Labels["token"]; got != "for-hooks" {
			return fmt.Errorf("called by %q", got)
		}
		return nil
	})
	storetest.EventuallySucceeds(t, "the annotation in the audit log", func() error {
		// The two webhooks are not in force at the same moment.
		if _, err := c.CoreV1().ConfigMaps(ns).Create(t.Context(), cm, metav1.CreateOptions{}); err != nil {
			return err
		}
		noted := slices.ContainsFunc(readAuditLog(t, site), func(e auditv1.Event) bool {
			return strings.HasPrefix(e.Annotations["warn.example.com/seen"], "called-")
		})
		if !noted {
			return errors.New("it is not there")
		}
		return nil
	})
}
