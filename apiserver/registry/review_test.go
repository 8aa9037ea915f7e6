package registry_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

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
	self, err := s.as("alice").AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
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
		local, err := s.client.AuthorizationV1().LocalSubjectAccessReviews("default").Create(ctx, &authorizationv1.LocalSubjectAccessReview{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default"},
			Spec:       authorizationv1.SubjectAccessReviewSpec{User: "bob", ResourceAttributes: attributes}}, metav1.CreateOptions{})
		if err != nil || local.Status.Allowed != want {
			t.Errorf("may bob %s here: %+v, %v", verb, local, err)
		}
		own, err := s.as("alice").AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: attributes}}, metav1.CreateOptions{})
		if err != nil || own.Status.Allowed != want {
			t.Errorf("may alice %s: %+v, %v", verb, own, err)
		}
	}
	rules, err := s.as("alice").AuthorizationV1().SelfSubjectRulesReviews().Create(ctx, &authorizationv1.SelfSubjectRulesReview{
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
	if component, err := s.client.CoreV1().ComponentStatuses().Get(t.Context(), "scheduler", metav1.GetOptions{}); err != nil || component.Conditions[0].Status != corev1.ConditionTrue {
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
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "jane"}}, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}
