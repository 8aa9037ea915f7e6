package controlplane

import (
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"byre/e2e/programs"
	"byre/sqlstore/storetest"
)

var kubectlPath = programs.Kubectl.Path()

// scenarios use the features of a control plane. They run at the same time, each in a
// namespace of its own.
var scenarios = []struct {
	name string
	run  func(*testing.T, *cluster)
}{
	{"Deployment", testDeployment},
	{"StatefulSet", testStatefulSet},
	{"DaemonSet", testDaemonSet},
	{"Job", testJob},
	{"CronJob", testCronJob},
	{"autoscaling", testAutoscaling},
	{"eviction", testEviction},
	{"lost node", testLostNode},
	{"preemption", testPreemption},
	{"claims", testClaims},
	{"quota", testQuota},
	{"namespace deletion", testNamespaceDeletion},
}

var labels = map[string]string{"app": "web"}

const (
	firstImage  = "example.com/web:1"
	secondImage = "example.com/web:2"
)

func podSpec() corev1.PodSpec {
	return corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: firstImage,
		Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}}}}}
}

func podTemplate() corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: podSpec()}
}

func deployment(replicas int32) *appsv1.Deployment {
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: appsv1.DeploymentSpec{Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: podTemplate()},
	}
}

func (c *cluster) createDeployment(t *testing.T, namespace string, d *appsv1.Deployment) {
	t.Helper()
	if _, err := c.client.AppsV1().Deployments(namespace).Create(t.Context(), d, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// setImage begins a rollout.
func (c *cluster) setImage(t *testing.T, namespace, image string) {
	t.Helper()
	patch := fmt.Sprintf(`{"spec":{"template":{"spec":{"containers":[{"name":"web","image":%q}]}}}}`, image)
	if _, err := c.client.AppsV1().Deployments(namespace).Patch(t.Context(), "web", types.StrategicMergePatchType,
		[]byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// awaitRollout waits until exactly n Pods of the image are there, all of them ready, and
// the Deployment says so.
func (c *cluster) awaitRollout(t *testing.T, namespace, image string, n int) {
	t.Helper()
	storetest.EventuallySucceeds(t, "the rollout of "+image, func() error {
		return c.checkRollout(t, namespace, image, n)
	})
}

func (c *cluster) checkRollout(t *testing.T, namespace, image string, n int) error {
	d, err := c.client.AppsV1().Deployments(namespace).Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		return err
	}
	want, s := int32(n), d.Status
	if s.ObservedGeneration != d.Generation || s.Replicas != want || s.UpdatedReplicas != want ||
		s.ReadyReplicas != want || s.AvailableReplicas != want {
		return fmt.Errorf("the Deployment of generation %d has the status %+v", d.Generation, s)
	}
	pods, err := c.client.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		return err
	}
	if len(pods.Items) != n {
		return fmt.Errorf("there are %d Pods", len(pods.Items))
	}
	for _, pod := range pods.Items {
		if pod.Spec.NodeName == "" || pod.Spec.Containers[0].Image != image || !isPodReady(&pod) {
			return fmt.Errorf("%s has the image %s and is on node %q in phase %s", pod.Name, pod.Spec.Containers[0].Image,
				pod.Spec.NodeName, pod.Status.Phase)
		}
	}
	return nil
}

func isPodReady(pod *corev1.Pod) bool {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}

// testDeployment rolls an update out and back, and checks the endpoints meanwhile.
func testDeployment(t *testing.T, c *cluster) {
	const ns = "deployment"
	c.namespace(t, ns)
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: corev1.ServiceSpec{Selector: labels, Ports: []corev1.ServicePort{{Port: 80}}}}
	if _, err := c.client.CoreV1().Services(ns).Create(t.Context(), service, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.createDeployment(t, ns, deployment(5))
	c.awaitRollout(t, ns, firstImage, 5)
	storetest.EventuallySucceeds(t, "five ready endpoints", func() error {
		slices, err := c.client.DiscoveryV1().EndpointSlices(ns).List(t.Context(),
			metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=web"})
		if err != nil {
			return err
		}
		if len(slices.Items) != 1 || len(slices.Items[0].Endpoints) != 5 {
			return fmt.Errorf("%d slices", len(slices.Items))
		}
		return nil
	})
	c.setImage(t, ns, secondImage)
	c.kubectl(t, "rollout", "status", "deployment/web", "-n", ns, "--timeout=5m")
	c.awaitRollout(t, ns, secondImage, 5)
	c.kubectl(t, "rollout", "undo", "deployment/web", "-n", ns)
	c.awaitRollout(t, ns, firstImage, 5)
	if history := c.kubectl(t, "rollout", "history", "deployment/web", "-n", ns); !strings.Contains(history, "\n2 ") ||
		!strings.Contains(history, "\n3 ") || strings.Contains(history, "\n1 ") {
		t.Errorf("the history after a rollback is:\n%s", history)
	}
}

// testStatefulSet checks the order in which the Pods of a StatefulSet are created and deleted.
func testStatefulSet(t *testing.T, c *cluster) {
	const ns = "statefulset"
	c.namespace(t, ns)
	pods, err := c.client.CoreV1().Pods(ns).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	events, err := c.client.CoreV1().Pods(ns).Watch(t.Context(), metav1.ListOptions{ResourceVersion: pods.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	defer events.Stop()
	set := &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: appsv1.StatefulSetSpec{Replicas: new(int32(3)), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: podTemplate(), ServiceName: "web"},
	}
	if _, err := c.client.AppsV1().StatefulSets(ns).Create(t.Context(), set, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	ready := map[string]bool{}
	expectOrder(t, events, ready, "web-0 comes", "web-0 is ready", "web-1 comes", "web-1 is ready", "web-2 comes",
		"web-2 is ready")
	patch := []byte(`{"spec":{"replicas":1}}`)
	if _, err := c.client.AppsV1().StatefulSets(ns).Patch(t.Context(), "web", types.MergePatchType, patch,
		metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	expectOrder(t, events, ready, "web-2 goes", "web-1 goes")
}

// expectOrder reads a watch of Pods until it has seen what is wanted, and nothing else
// of that kind before. It notes which Pods became ready.
func expectOrder(t *testing.T, events watch.Interface, ready map[string]bool, want ...string) {
	t.Helper()
	timeout := time.After(storetest.Patience)
	for len(want) > 0 {
		var got string
		select {
		case event, open := <-events.ResultChan():
			pod, ok := event.Object.(*corev1.Pod)
			if !open || !ok {
				t.Fatalf("the watch ended before %v: %v", want, event)
			}
			switch {
			case event.Type == watch.Added:
				got = pod.Name + " comes"
			case event.Type == watch.Deleted:
				got = pod.Name + " goes"
			case isPodReady(pod) && pod.DeletionTimestamp == nil && !ready[pod.Name]:
				ready[pod.Name], got = true, pod.Name+" is ready"
			default:
				continue
			}
		case <-timeout:
			t.Fatalf("not within %v: %v", storetest.Patience, want)
		}
		if got != want[0] {
			t.Fatalf("%s, before %s", got, want[0])
		}
		want = want[1:]
	}
}

// testDaemonSet runs a Pod on each node that has a label.
func testDaemonSet(t *testing.T, c *cluster) {
	const ns = "daemonset"
	c.namespace(t, ns)
	template := podTemplate()
	template.Spec.NodeSelector = map[string]string{ns: "yes"}
	set := &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: "agent"},
		Spec:       appsv1.DaemonSetSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: template},
	}
	if _, err := c.client.AppsV1().DaemonSets(ns).Create(t.Context(), set, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	runsOn := func(nodes ...string) {
		t.Helper()
		storetest.EventuallySucceeds(t, fmt.Sprintf("the Pods run on %v", nodes), func() error {
			pods, err := c.client.CoreV1().Pods(ns).List(t.Context(), metav1.ListOptions{})
			if err != nil {
				return err
			}
			missing := map[string]bool{}
			for _, node := range nodes {
				missing[node] = true
			}
			for _, pod := range pods.Items {
				if !missing[pod.Spec.NodeName] || !isPodReady(&pod) {
					return fmt.Errorf("%s is on %q", pod.Name, pod.Spec.NodeName)
				}
				delete(missing, pod.Spec.NodeName)
			}
			if len(missing) > 0 {
				return fmt.Errorf("no Pod on %v", missing)
			}
			return nil
		})
	}
	c.kubectl(t, "label", "node", "node-0", "node-1", ns+"=yes")
	runsOn("node-0", "node-1")
	c.kubectl(t, "label", "node", "node-2", ns+"=yes")
	c.kubectl(t, "label", "node", "node-0", ns+"-")
	runsOn("node-1", "node-2")
}

// testJob runs a Job until it is complete, and checks that its TTL deletes it.
func testJob(t *testing.T, c *cluster) {
	const ns = "job"
	c.namespace(t, ns)
	jobs := c.client.BatchV1().Jobs(ns)
	template := podTemplate()
	template.Spec.RestartPolicy = corev1.RestartPolicyNever
	job := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: "work"},
		Spec:       batchv1.JobSpec{Completions: new(int32(4)), Parallelism: new(int32(2)), Template: template},
	}
	if _, err := jobs.Create(t.Context(), job, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	storetest.EventuallySucceeds(t, "the Job is complete", func() error {
		job, err := jobs.Get(t.Context(), "work", metav1.GetOptions{})
		if err == nil && (job.Status.Succeeded != 4 || job.Status.CompletionTime == nil) {
			err = fmt.Errorf("its status is %+v", job.Status)
		}
		return err
	})
	if _, err := jobs.Patch(t.Context(), "work", types.MergePatchType, []byte(`{"spec":{"ttlSecondsAfterFinished":0}}`),
		metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	storetest.EventuallySucceeds(t, "the Job and its Pods are gone", func() error {
		pods, err := c.client.CoreV1().Pods(ns).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		if len(pods.Items) > 0 {
			return fmt.Errorf("%d Pods are left", len(pods.Items))
		}
		_, err = jobs.Get(t.Context(), "work", metav1.GetOptions{})
		return checkNotFound(err)
	})
}

// testCronJob gives a CronJob a start that it has missed, so that the test need not wait for
// the next minute.
func testCronJob(t *testing.T, c *cluster) {
	const ns = "cronjob"
	c.namespace(t, ns)
	template := podTemplate()
	template.Spec.RestartPolicy = corev1.RestartPolicyNever
	crons := c.client.BatchV1().CronJobs(ns)
	cron, err := crons.Create(t.Context(), &batchv1.CronJob{
		ObjectMeta: metav1.ObjectMeta{Name: "nightly"},
		Spec: batchv1.CronJobSpec{
			Schedule: "* * * * *", Suspend: new(true), ConcurrencyPolicy: batchv1.ForbidConcurrent,
			JobTemplate: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{Template: template}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	cron.Status.LastScheduleTime = &metav1.Time{Time: time.Now().Add(-10 * time.Minute)}
	if _, err := crons.UpdateStatus(t.Context(), cron, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := crons.Patch(t.Context(), "nightly", types.MergePatchType, []byte(`{"spec":{"suspend":false}}`),
		metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	storetest.EventuallySucceeds(t, "a Job is complete", func() error {
		cron, err := crons.Get(t.Context(), "nightly", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if cron.Status.LastSuccessfulTime == nil {
			return fmt.Errorf("its status is %+v", cron.Status)
		}
		jobs, err := c.client.BatchV1().Jobs(ns).List(t.Context(), metav1.ListOptions{})
		if err == nil && (len(jobs.Items) == 0 || !metav1.IsControlledBy(&jobs.Items[0], cron)) {
			err = fmt.Errorf("%d Jobs", len(jobs.Items))
		}
		return err
	})
}
