package main

import (
	"encoding/base64"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The history shows which values of a Secret have changed, and shows them only where that is asked for.
func TestHistory_MasksValuesOfSecrets(t *testing.T) {
	t.Parallel()
	h := newChronicle(t, "--controllers=", "--console")
	p := past{t, filepath.Join(h.dir, "admin.kubeconfig")}
	h.makeNamespace("shop")
	client := h.kube.CoreV1().Secrets("shop")
	secret, err := client.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}, StringData: map[string]string{"key": "canary-one", "same": "canary-same"}}, metav1.CreateOptions{})
	h.must(err)
	secret.Data["key"] = []byte("canary-two")
	secret, err = client.Update(t.Context(), secret, metav1.UpdateOptions{})
	h.must(err)
	revision := secret.ResourceVersion

	one, two := base64.StdEncoding.EncodeToString([]byte("canary-one")), base64.StdEncoding.EncodeToString([]byte("canary-two"))
	isMasked := func(what, out string) {
		t.Helper()
		for _, canary := range []string{"canary-one", "canary-two", "canary-same"} {
			if strings.Contains(out, canary) || strings.Contains(out, base64.StdEncoding.EncodeToString([]byte(canary))) {
				t.Errorf("%s shows a value:\n%s", what, out)
			}
		}
		if !strings.Contains(out, "***") {
			t.Errorf("%s shows nothing masked:\n%s", what, out)
		}
	}
	for _, shown := range []struct {
		command []string
		want    []string
	}{
		{[]string{"log", "secret/s"}, []string{one, two}},
		{[]string{"log", "secret/s", "-o", "json"}, []string{one, two}},
		{[]string{"diff", "secret/s"}, []string{one, two}},
		{[]string{"diff", "secret/s", "-o", "json"}, []string{one, two}},
		{[]string{"blame", "secret/s"}, []string{two}},
		{[]string{"blame", "secret/s", "-o", "json"}, []string{two}},
		{[]string{"undo", revision, "--dry-run=server"}, []string{one}},
	} {
		command := append(shown.command, "-n", "shop")
		isMasked(strings.Join(command, " "), p.run("", nil, command...))
		p.run("", shown.want, append(command, "--show-secrets")...)
	}
	for _, accept := range []string{"application/json", "application/json;as=Table;v=v1;g=meta.k8s.io"} {
		_, list := h.as("", inShop+"?fieldSelector=object.resource%3Dsecrets", accept)
		isMasked("a list as "+accept, list)
	}
	_, table := h.as("", inShop+"/"+revision, "application/json;as=Table;v=v1;g=meta.k8s.io")
	isMasked("the table of one change", table)
	if _, got := h.as("", inShop+"/"+revision, "application/json"); !strings.Contains(got, one) || !strings.Contains(got, two) {
		t.Errorf("a change that is got has no values: %s", got)
	}

	m := h.model("", "shop", 200, "64Ki")
	object := map[string]any{"resource": "secrets", "name": "s"}
	for _, tool := range []string{"changes", "diff", "show", "blame"} {
		text, result := m.call(tool, object)
		if result.IsError {
			t.Fatal(text)
		}
		isMasked("the tool "+tool, text)
	}
	_, rows := h.ask("", "text/csv", "SELECT path, old, new FROM field_changes WHERE resource = 'secrets'")
	isMasked("SQL", rows)

	console := h.openConsole("")
	for _, page := range []string{"o/core/v1/secrets/shop/s", "change/shop/" + revision} {
		_, body, err := fetch(t.Context(), http.DefaultClient, console+page)
		h.must(err)
		isMasked("the page "+page, body)
	}
	if _, body, _ := fetch(t.Context(), http.DefaultClient, console+"change/shop/"+revision+"?secrets=1"); !strings.Contains(body, one) || !strings.Contains(body, two) {
		t.Errorf("the page of the change does not show the values when it is asked to: %s", body)
	}
}
