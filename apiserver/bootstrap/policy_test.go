package bootstrap_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"
)

// TestPolicy_IsUpstreams compares every role and binding with upstream's policy,
// object by object.
func TestPolicy_IsUpstreams(t *testing.T) {
	client := fake.NewClientset()
	ensure(t, config(t, client))
	ctx := t.Context()
	options := cmp.Options{
		cmpopts.EquateEmpty(),
		cmpopts.IgnoreTypes(metav1.TypeMeta{}),
		cmpopts.IgnoreFields(metav1.ObjectMeta{}, "ResourceVersion", "ManagedFields"),
	}

	clusterRoles, err := client.RbacV1().ClusterRoles().List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	bootstrapping := metav1.ObjectMeta{
		Labels:      map[string]string{"kubernetes.io/bootstrapping": "rbac-defaults"},
		Annotations: map[string]string{rbacv1.AutoUpdateAnnotationKey: "true"},
	}
	viewer := rbacv1.ClusterRole{
		ObjectMeta: bootstrapping,
		Rules: []rbacv1.PolicyRule{{APIGroups: []string{"history.byre.dev"}, Resources: []string{"changes"},
			Verbs: []string{"get", "list", "watch"}}},
	}
	viewer.Name = "byre:history-viewer"
	asker := rbacv1.ClusterRole{
		ObjectMeta: bootstrapping,
		Rules: []rbacv1.PolicyRule{{APIGroups: []string{"sql.byre.dev"}, Resources: []string{"queries"},
			Verbs: []string{"create"}}},
	}
	asker.Name = "byre:sql-user"
	visitor := rbacv1.ClusterRole{
		ObjectMeta: bootstrapping,
		Rules:      []rbacv1.PolicyRule{{NonResourceURLs: []string{"/console", "/console/*"}, Verbs: []string{"get"}}},
	}
	visitor.Name = "byre:console-user"
	own := []rbacv1.ClusterRole{viewer, visitor, asker}
	compare(t, options, slices.Concat(bootstrappolicy.ClusterRoles(), bootstrappolicy.ControllerRoles(), own),
		clusterRoles.Items,
		func(r rbacv1.ClusterRole) string { return r.Name })

	clusterBindings, err := client.RbacV1().ClusterRoleBindings().List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	admins := rbacv1.ClusterRoleBinding{
		ObjectMeta: bootstrapping,
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: "kubeadm:cluster-admins"}},
	}
	admins.Name = "kubeadm:cluster-admins"
	kubelets := rbacv1.ClusterRoleBinding{
		ObjectMeta: bootstrapping,
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:kubelet-api-admin"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind,
			Name: "kube-apiserver-kubelet-client"}},
	}
	kubelets.Name = "kubeadm:apiserver-kubelet-client"
	kubeadm := []rbacv1.ClusterRoleBinding{admins, kubelets}
	compare(t, options,
		slices.Concat(bootstrappolicy.ClusterRoleBindings(), bootstrappolicy.ControllerRoleBindings(), kubeadm),
		clusterBindings.Items,
		func(b rbacv1.ClusterRoleBinding) string { return b.Name })

	roles, err := client.RbacV1().Roles("").List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var wantRoles []rbacv1.Role
	for _, some := range bootstrappolicy.NamespaceRoles() {
		wantRoles = append(wantRoles, some...)
	}
	compare(t, options, wantRoles, roles.Items, func(r rbacv1.Role) string { return r.Namespace + "/" + r.Name })

	bindings, err := client.RbacV1().RoleBindings("").List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var wantBindings []rbacv1.RoleBinding
	for _, some := range bootstrappolicy.NamespaceRoleBindings() {
		wantBindings = append(wantBindings, some...)
	}
	compare(t, options, wantBindings, bindings.Items, func(b rbacv1.RoleBinding) string {
		return b.Namespace + "/" + b.Name
	})
}

func compare[T any](t *testing.T, options cmp.Options, want, got []T, name func(T) string) {
	t.Helper()
	byName := func(all []T) map[string]T {
		m := map[string]T{}
		for _, o := range all {
			m[name(o)] = o
		}
		return m
	}
	if len(want) == 0 {
		t.Errorf("upstream has no %T", want)
	}
	if diff := cmp.Diff(byName(want), byName(got), options); diff != "" {
		t.Errorf("%T (-upstream +made):\n%s", want, diff)
	}
}

// TestPolicy_IsReconciled: missing rules of a role are added, additional ones stay, and a
// role that is protected from updates does not change.
func TestPolicy_IsReconciled(t *testing.T) {
	extra := rbacv1.PolicyRule{Verbs: []string{"get"}, APIGroups: []string{"example.com"}, Resources: []string{"widgets"}}
	client := fake.NewClientset(
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "system:discovery"}, Rules: []rbacv1.PolicyRule{extra}},
		&rbacv1.ClusterRole{
			ObjectMeta: metav1.ObjectMeta{Name: "system:basic-user",
				Annotations: map[string]string{rbacv1.AutoUpdateAnnotationKey: "false"}},
			Rules: []rbacv1.PolicyRule{extra},
		},
	)
	ensure(t, config(t, client))
	rules := func(name string) []rbacv1.PolicyRule {
		role, err := client.RbacV1().ClusterRoles().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return role.Rules
	}
	if got := rules("system:discovery"); len(got) < 2 || !cmp.Equal(got[0], extra) {
		t.Errorf("system:discovery: %v", got)
	}
	if got := rules("system:basic-user"); len(got) != 1 || !cmp.Equal(got[0], extra) {
		t.Errorf("system:basic-user: %v", got)
	}
}
