package console

import (
	"context"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"byre/e2e/servers"
	"byre/sqlstore/storetest"
)

// client is a client with the rights of an administrator, whose writes are those of a user.
func client(t *testing.T, server *servers.Server, user string) kubernetes.Interface {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", server.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	if user != "" {
		config.Impersonate.UserName, config.Impersonate.Groups = user, []string{"system:masters"}
	}
	return kubernetes.NewForConfigOrDie(config)
}

func clusterRole(name string) *rbacv1.ClusterRole {
	return &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

func deployment(name string, replicas int32) *appsv1.Deployment {
	labels := map[string]string{"app": name}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Spec: appsv1.DeploymentSpec{
			Replicas: new(replicas), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main",
					Image: "registry.example.com/shop/" + name + ":1.4.2"}}},
			},
		},
	}
}

// fillShop makes a namespace in which two users have worked, and names that would break pages that do not
// escape them.
func fillShop(t *testing.T, server *servers.Server) {
	t.Helper()
	alice, bob := client(t, server, "alice"), client(t, server, "bob")
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(alice.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}},
		metav1.CreateOptions{}))
	for name, replicas := range map[string]int32{"web": 2, "search": 3, "mail": 1,
		"a-deployment-with-a-name-as-long-as-those-of-some-tools-are": 1} {
		must(alice.AppsV1().Deployments("shop").Create(t.Context(), deployment(name, replicas), metav1.CreateOptions{}))
	}
	for _, name := range []string{"settings", "limits", "<script>alert(1)<script>"} {
		if name[0] == '<' {
			must(alice.RbacV1().ClusterRoles().Create(t.Context(), clusterRole(name), metav1.CreateOptions{}))
			continue
		}
		must(alice.CoreV1().ConfigMaps("shop").Create(t.Context(),
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"rate": "20"}},
			metav1.CreateOptions{}))
	}
	must(bob.AppsV1().Deployments("shop").Patch(t.Context(), "web", types.MergePatchType,
		[]byte(`{"spec":{"replicas":4,"template":{"spec":{"priorityClassName":"system-node-critical"}}}}`),
		metav1.PatchOptions{FieldManager: "kubectl"}))
	must(bob.AppsV1().Deployments("shop").Patch(t.Context(), "web", types.MergePatchType,
		[]byte(`{"metadata":{"annotations":{"note":"<img src=x onerror=alert(1)>"}}}`),
		metav1.PatchOptions{FieldManager: "kubectl"}))
	must(nil, bob.CoreV1().ConfigMaps("shop").Delete(t.Context(), "limits", metav1.DeleteOptions{}))
	must(nil, bob.AppsV1().Deployments("shop").Delete(t.Context(), "mail", metav1.DeleteOptions{}))
	storetest.EventuallyDone(t, "the Deployments have Pods", func(ctx context.Context) (bool, error) {
		pods, err := alice.CoreV1().Pods("shop").List(ctx, metav1.ListOptions{LabelSelector: "app=web"})
		return err == nil && len(pods.Items) >= 4, err
	})
}
