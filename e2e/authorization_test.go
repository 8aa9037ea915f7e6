package e2e

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"byre/e2e/peers"
	"byre/e2e/servers"
	"byre/sqlstore/storetest"
)

// testAuthorizationConfig has a chain of authorizers: a webhook that is asked
// about contractors only (alice is one, wanda is not), and RBAC behind it.
func testAuthorizationConfig(t *testing.T, site *site, s *servers.Server) {
	admin, alice, wanda := client(t, s), clientFor(t, s.Config(servers.AliceToken)),
		clientFor(t, s.Config(peers.HookedToken))
	const open, vault = "open", "vault-1"
	// Not "view", which is empty without the controller that aggregates.
	reader := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "pod-reader"},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list"}}},
	}
	if _, err := admin.RbacV1().ClusterRoles().Create(t.Context(), reader, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, ns := range []string{open, vault} {
		createNamespace(t, admin, ns)
		bind(t, admin, ns, reader.Name, "alice", "wanda")
	}
	list := func(c kubernetes.Interface, ns string) error {
		_, err := c.CoreV1().Pods(ns).List(t.Context(), metav1.ListOptions{})
		return err
	}
	mayBoth := func(c kubernetes.Interface) error { return errors.Join(list(c, open), list(c, vault)) }

	if err := list(alice, open); err != nil {
		t.Errorf("where the webhook has no opinion, RBAC decides: %v", err)
	}
	if err := list(alice, vault); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "the vault is closed") {
		t.Errorf("a request that the webhook denies: %v", err)
	}
	if _, err := alice.CoreV1().Secrets(open).Get(t.Context(), "shared", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a request that the webhook allows: %v", err)
	}
	if _, err := alice.CoreV1().Secrets(open).Get(t.Context(), "other", metav1.GetOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a request that no authorizer allows: %v", err)
	}
	asked := site.hooks.Asked()
	if err := mayBoth(wanda); err != nil || site.hooks.Asked() != asked {
		t.Errorf("the webhook was asked about wanda %d times (%v)", site.hooks.Asked()-asked, err)
	}

	site.edit(t, "authorization.yaml", "'contractors' in request.groups", "'robbers' in request.groups")
	storetest.EventuallySucceeds(t, "the new match condition", func() error { return mayBoth(alice) })
	site.edit(t, "authorization.yaml", "'robbers' in request.groups", "'unfinished")
	site.edit(t, "authorization-webhook.kubeconfig", site.hooks.URL, "https://127.0.0.1:1")
	storetest.EventuallySucceeds(t, "the refusal of the broken file", func() error {
		if _, metrics := get(t, s, servers.AdminToken, "/metrics"); !strings.Contains(metrics,
			`apiserver_authorization_config_controller_automatic_reloads_total{apiserver_id_hash=`) ||
			!strings.Contains(metrics, `status="failure"} 1`) {
			return errors.New("no failure is counted")
		}
		return nil
	})
	if err := mayBoth(alice); err != nil {
		t.Errorf("with an invalid file, the configuration before it does not stay in force: %v", err)
	}
	site.edit(t, "authorization.yaml", "'unfinished", "'contractors' in request.groups")
	storetest.EventuallySucceeds(t, "the failure policy of a webhook that is gone", func() error {
		if err := list(alice, open); !apierrors.IsInternalError(err) {
			return fmt.Errorf("a list by alice: %w", err)
		}
		return nil
	})
	if err := mayBoth(wanda); err != nil {
		t.Errorf("without its webhook, a request about which the webhook is not asked: %v", err)
	}
}

func bind(t *testing.T, admin kubernetes.Interface, ns, role string, users ...string) {
	t.Helper()
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "bound-" + strings.Join(users, "-")},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
	}
	for _, user := range users {
		binding.Subjects = append(binding.Subjects,
			rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user})
	}
	if _, err := admin.RbacV1().RoleBindings(ns).Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// testRulesOnReplicas binds and unbinds a role through one replica: that is in force
// within a second on both. (Also the replica that was written to may have to read first
// what the other one wrote just before.)
func testRulesOnReplicas(t *testing.T, a, b *servers.Server) {
	const ns, rounds, most = "rules", 20, time.Second
	admin, here, there := client(t, a), clientFor(t, a.Config(servers.AliceToken)),
		clientFor(t, b.Config(servers.AliceToken))
	createNamespace(t, admin, ns)
	may := func(c kubernetes.Interface) bool {
		_, err := c.CoreV1().ConfigMaps(ns).List(t.Context(), metav1.ListOptions{})
		if err != nil && !apierrors.IsForbidden(err) {
			t.Fatal(err)
		}
		return err == nil
	}
	slowest, late := time.Duration(0), 0
	follow := func(want bool) {
		written := time.Now()
		for _, c := range []kubernetes.Interface{here, there} {
			for may(c) != want {
				if time.Since(written) > storetest.Patience {
					t.Fatalf("alice may after %v: %v", storetest.Patience, !want)
				}
			}
		}
		took := time.Since(written)
		if slowest = max(slowest, took); took > most {
			late++
		}
	}
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "rules"}, Rules: []rbacv1.PolicyRule{{
		APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"list"}}}}
	if _, err := admin.RbacV1().ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for range rounds {
		bind(t, admin, ns, role.Name, "alice")
		follow(true)
		if err := admin.RbacV1().RoleBindings(ns).Delete(t.Context(), "bound-alice", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		follow(false)
	}
	t.Logf("the replicas followed within %v", slowest)
	// On a loaded machine a few rounds may take longer.
	if late > rounds {
		t.Errorf("the replicas took more than %v %d times of %d", most, late, 2*rounds)
	}
}

// TestAuthorization_ModesDecideAlone starts byre with modes that decide alone.
func TestAuthorization_ModesDecideAlone(t *testing.T) {
	t.Parallel()
	for _, name := range databases {
		for _, mode := range []string{"AlwaysAllow", "AlwaysDeny"} {
			t.Run(name+" "+mode, func(t *testing.T) {
				t.Parallel()
				testAuthorizationMode(t, startByre(t, openDatabase(t, name), "--authorization-mode="+mode), mode)
			})
		}
	}
}

func testAuthorizationMode(t *testing.T, s *servers.Server, mode string) {
	alice := kubeconfig(t, s.URL, s.CAFile, tokenUser(servers.AliceToken))
	stdout, stderr, _ := kubectl(t, alice, "auth", "can-i", "delete", "nodes") // a no is an exit status
	if mode == "AlwaysAllow" && strings.TrimSpace(stdout) != "yes" || mode == "AlwaysDeny" &&
		!strings.Contains(stderr, "Forbidden") {
		t.Errorf("kubectl says %s%s", stdout, stderr)
	}
	// With AlwaysAllow, anonymous access would give the cluster away.
	if status, _ := get(t, s, "", "/api/v1/nodes"); mode == "AlwaysAllow" && status != 401 || mode == "AlwaysDeny" &&
		status != 403 {
		t.Errorf("without credentials: %d", status)
	}
}

// TestAuthorization_OIDCAndWebhookByFlags gives an OpenID Connect issuer and an
// authorization webhook by flags, as docs/operations/security.md does.
func TestAuthorization_OIDCAndWebhookByFlags(t *testing.T) {
	t.Parallel()
	for _, name := range databases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testByFlags(t, openDatabase(t, name))
		})
	}
}

func testByFlags(t *testing.T, db database) {
	site := newSite(t)
	s := startByre(t, db, append(site.follow(t, "Authentication", 1), site.follow(t, "Authorization", 0)...)...)
	dora := kubeconfig(t, s.URL, s.CAFile, tokenUser(site.token(t, map[string]any{"email_verified": true})))
	if got := whoami(t, dora); got.Username != "oidc:dora@example.com" ||
		fmt.Sprint(got.Groups) != "[oidc:dev system:authenticated]" {
		t.Errorf("dora is %s", got.String())
	}
	for claim, wrong := range map[string]any{"hd": "example.org", "aud": "others", "email_verified": false, "exp": 1} {
		stranger := kubeconfig(t, s.URL, s.CAFile, tokenUser(site.token(t, map[string]any{claim: wrong})))
		if got, err := tryWhoami(t, stranger); err == nil || !strings.Contains(err.Error(), "must be logged in") {
			t.Errorf("with the claim %s: %v, it is %s (%v)", claim, wrong, got.String(), err)
		}
	}
	for _, test := range []struct{ resource, want string }{
		{"get secrets/shared", "yes"}, {"get secrets/other", "no"}, {"list pods -n vault-2", "no - the vault is closed"},
	} {
		stdout, _, _ := kubectl(t, dora, append([]string{"auth", "can-i"}, strings.Fields(test.resource)...)...)
		if got := strings.TrimSpace(stdout); got != test.want {
			t.Errorf("can-i %s: %s, want %s", test.resource, got, test.want)
		}
	}
}
