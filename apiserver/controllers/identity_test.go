package controllers

import (
	"slices"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"
)

// TestDescriptors_NameAccountsOfTheBootstrapPolicy: each controller is a service account to which
// the bootstrap policy binds a role. The controller that makes tokens is kube-controller-manager.
func TestDescriptors_NameAccountsOfTheBootstrapPolicy(t *testing.T) {
	t.Parallel()
	var bound []string
	for _, binding := range bootstrappolicy.ControllerRoleBindings() {
		for _, subject := range binding.Subjects {
			if subject.Kind == rbacv1.ServiceAccountKind && subject.Namespace == metav1.NamespaceSystem {
				bound = append(bound, subject.Name)
			}
		}
	}
	// These have Roles of their own in kube-system and kube-public.
	bound = append(bound, "bootstrap-signer", "token-cleaner")
	for name, d := range descriptors() {
		if isManager := name == "serviceaccount-token-controller"; isManager != (d.account == "") {
			t.Errorf("%s is %q", name, d.account)
		} else if !isManager && !slices.Contains(bound, d.account) {
			t.Errorf("%s is %s, to which no role is bound", name, d.account)
		}
	}
}

// TestClients_AreOfTheServiceAccount: a controller's clients are its service account, which is
// created, with upstream's user agent.
func TestClients_AreOfTheServiceAccount(t *testing.T) {
	t.Parallel()
	var who user.Info
	c := Config{ClientConfig: func(component string, u user.Info) *rest.Config {
		who = u
		return &rest.Config{UserAgent: component + "/v1 (os/arch) kubernetes/abc"}
	}}
	api := fake.NewClientset()
	const account = "system:serviceaccount:kube-system:deployment-controller"
	for range 2 { // the second finds the account
		own, err := c.newControllerClients(t.Context(), clients{kube: api}, "deployment", descriptor{account: "deployment-controller"})
		if err != nil {
			t.Fatal(err)
		}
		groups := []string{"system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"}
		if who.GetName() != account || !slices.Equal(who.GetGroups(), groups) {
			t.Errorf("the controller is %s in %v", who.GetName(), who.GetGroups())
		}
		if want := "kube-controller-manager/v1 (os/arch) kubernetes/abc/" + account; own.config.UserAgent != want {
			t.Errorf("user agent %q, want %q", own.config.UserAgent, want)
		}
	}
	if _, err := api.CoreV1().ServiceAccounts("kube-system").Get(t.Context(), "deployment-controller", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
}
