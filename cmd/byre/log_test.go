package main

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"byre/sqlstore/postgres/pgtest"
	"byre/sqlstore/storetest"
)

// TestLog_OfAStartIsShort: without -v the log of a start names what started, the database
// and the readiness, and leaves out messages of upstream's packages.
func TestLog_OfAStartIsShort(t *testing.T) {
	t.Parallel()
	onDatabases(t, func(t *testing.T, flags ...string) {
		server := startServer(t, t.TempDir(), flags...)
		storetest.Eventually(t, "the log says Ready", func() bool { return strings.Contains(server.log.String(), `"Ready"`) })
		if errors := regexp.MustCompile(`(?m)^E.*`).FindAllString(server.log.String(), -1); len(errors) > 0 {
			t.Errorf("errors of a first start: %q", errors)
		}
		if status := server.stop(t); status != 0 {
			t.Errorf("exit status %d", status)
		}
		log := server.log.String()
		for _, want := range []string{
			`I.* storage.go:\d+\] "Starting byre" version=".+" kubernetes="v1\.37\..*"`,
			`I.* storage.go:\d+\] "Opened database" database=".+" schema=[1-9]\d* revision=0`,
			`I.* run.go:\d+\] "Ready" address="127.0.0.1:\d+" kubeconfig=".*/admin.kubeconfig"`,
		} {
			if !regexp.MustCompile(want).MatchString(log) {
				t.Errorf("no line %s", want)
			}
		}
		if lines := len(regexp.MustCompile(`(?m)^I`).FindAllString(log, -1)); lines > 10 {
			t.Errorf("%d lines of information", lines)
		}
		if strings.Contains(log, "password") {
			t.Error("a secret is in the log")
		}
	})
}

// retried matches what upstream's controllers log as errors, in kube-controller-manager too, when
// they do a step again because of a write or a deletion that they had not yet seen.
var retried = regexp.MustCompile(`is not as new as written version|the object has been modified|failed with replicasets\.apps \\"[^"]+" not found`)

func TestRetried_MatchesWhatAClusterLogged(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]bool{
		`replica_set.go:640] "Unhandled Error" err="sync \"default/web-7b\" failed with read version: 265 is not as new as written version: 276 for group resource replicasets.apps"`: true,
		`replica_set.go:640] "Unhandled Error" err="sync \"default/web-7b\" failed with replicasets.apps \"web-7b\" not found"`:                                                       true,
		`replica_set.go:640] "Unhandled Error" err="sync \"default/web-7b\" failed with replicasets.apps \"web-7b\" is forbidden"`:                                                    false,
	} {
		if got := retried.MatchString(line); got != want {
			t.Errorf("%s: %t", line, got)
		}
	}
}

// TestLog_OfAClusterHasNoErrors: two servers of one host share a database and run the controllers
// and the scheduler. A Deployment is rolled out and deleted, the leader stops, and the other one
// goes on: none of that is an error.
func TestLog_OfAClusterHasNoErrors(t *testing.T) {
	t.Parallel()
	flags := []string{"--endpoint", pgtest.DSN(t), "--cert-dir", t.TempDir(), "--with-scheduler", "--with-controller-manager"}
	first := startServer(t, t.TempDir(), flags...)
	leader := waitForLeader(t, kubernetes.NewForConfigOrDie(first.config(t)), "")
	second := startServer(t, t.TempDir(), flags...)
	client := kubernetes.NewForConfigOrDie(second.config(t))
	createReadyNode(t, client, "node1")
	deployments := client.AppsV1().Deployments("default")
	if _, err := deployments.Create(t.Context(), webDeployment("example.com/web:1"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitRollout(t, client, "example.com/web:1")
	if err := deployments.Delete(t.Context(), "web", metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationForeground)}); err != nil {
		t.Fatal(err)
	}
	storetest.EventuallyDone(t, "the Deployment is gone", func(ctx context.Context) (bool, error) {
		_, err := deployments.Get(ctx, "web", metav1.GetOptions{})
		return isGone(err)
	})
	if status := first.stop(t); status != 0 {
		t.Errorf("exit status of the first is %d", status)
	}
	waitForLeader(t, client, leader)
	makeAndDeleteNamespace(t, client, "after")
	if status := second.stop(t); status != 0 {
		t.Errorf("exit status of the second is %d", status)
	}
	for name, server := range map[string]*serverProcess{"first": first, "second": second} {
		lines := slices.DeleteFunc(errorLine.FindAllString(server.log.String(), -1), retried.MatchString)
		if len(lines) > 0 {
			t.Errorf("errors of the %s: %s", name, strings.Join(lines, "\n"))
		}
	}
}

// With -v=1 the log has upstream's messages too.
func TestLog_VerboseStartHasEverything(t *testing.T) {
	t.Parallel()
	server := startServer(t, t.TempDir(), "-v=1")
	// Controllers write it, which the readiness does not wait for.
	storetest.Eventually(t, "upstream's line is in the log", func() bool {
		server.mustRun(t)
		return strings.Contains(server.log.String(), "Caches are synced")
	})
}

// TestLog_HasNoPassword: neither the log, at any verbosity and in both formats, nor any
// endpoint of the server contains the password of the database. Every line in JSON is an
// object.
func TestLog_HasNoPassword(t *testing.T) {
	t.Parallel()
	const password = "Tr0ub4dor"
	for format, ready := range map[string]string{"text": `"Ready" address=`, "json": `"msg":"Ready"`} {
		t.Run(format, func(t *testing.T) {
			good, err := url.Parse(pgtest.DSN(t))
			if err != nil {
				t.Fatal(err)
			}
			good.User = url.UserPassword(good.User.Username(), password)
			dir := t.TempDir()
			server := command(t, dir, "serve", "--data-dir", dir, "--bind-address=127.0.0.1", "--secure-port=0",
				"--endpoint", good.String(), "--logging-format", format, "-v=10")
			storetest.Eventually(t, "the log says Ready", func() bool {
				server.mustRun(t)
				return strings.Contains(server.log.String(), ready)
			})
			for _, path := range []string{"/metrics", "/flagz", "/statusz", "/readyz?verbose"} {
				if _, body := server.mustGet(t, path); strings.Contains(body, password) {
					t.Errorf("the password is in %s", path)
				}
			}
			server.stop(t)
			log := server.log.String()
			if strings.Contains(log, password) {
				t.Error("the password is in the log")
			}
			for line := range strings.Lines(log) {
				if object := map[string]any{}; format == "json" && (json.Unmarshal([]byte(line), &object) != nil || object["msg"] == nil) {
					t.Fatalf("a line of the log is not an object with a message: %q", line)
				}
			}
		})
	}
	for _, bad := range []string{
		"postgres://user:" + password + "@127.0.0.1:1/database",
		"host=127.0.0.1 port=1 user=user password=" + password,
		"postgres://user:" + password + "@127.0.0.1:1/database?sslcert=/no/such/file&sslkey=/no/such/file",
		"postgres://user:" + password + "@127.0.0.1:port/database",
	} {
		for _, args := range [][]string{{"serve", "-v=10", "--data-dir", t.TempDir()}, {"status", "--data-dir", t.TempDir()}, {"migrate", "status"}, {"backup", "-"}} {
			p := command(t, "", append(args, "--endpoint", bad)...)
			if status := p.wait(t); status == 0 || strings.Contains(p.log.String(), password) {
				t.Errorf("byre %s with %s: status %d, %q", args[0], bad, status, p.log)
			}
		}
	}
}

// TestLog_LimitsRepeatedLines: a webhook that fails at every request and a client without a
// valid token take some lines of the log, not one a request, in both formats.
func TestLog_LimitsRepeatedLines(t *testing.T) {
	const requests, most = 150, 60
	for format, ready := range map[string]string{"text": `"Ready" address=`, "json": `"msg":"Ready"`} {
		t.Run(format, func(t *testing.T) {
			dir := t.TempDir()
			server := command(t, dir, serveArgs(dir, "--logging-format", format, "-v=2")...)
			storetest.Eventually(t, "the log says Ready", func() bool {
				server.mustRun(t)
				return strings.Contains(server.log.String(), ready)
			})
			config := server.config(t)
			config.QPS = -1 // no limit
			client := kubernetes.NewForConfigOrDie(config)
			hook := newSlowHook(t)
			hook.install(t, client)
			stranger := rest.AnonymousClientConfig(config)
			stranger.BearerToken = "wrong"
			for range requests {
				probe := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "probe"}} // the webhook's rules match this name
				if _, err := client.CoreV1().ConfigMaps("default").Create(t.Context(), probe, metav1.CreateOptions{}); !apierrors.IsInternalError(err) {
					t.Fatalf("the webhook's failure is %v", err)
				}
				if status, _, err := get(t.Context(), stranger, "/api"); err != nil || status != http.StatusUnauthorized {
					t.Fatalf("a wrong token: status %d, %v", status, err)
				}
			}
			log := server.log.String()
			for _, message := range []string{"failed calling webhook", "Unable to authenticate the request"} {
				if n := strings.Count(log, message); n == 0 || n > most {
					t.Errorf("%d requests make %d lines with %q", requests, n, message)
				}
			}
		})
	}
}
