package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"byre/cmd/byre/plugin"
)

// edits are random edits of objects, with a log of who gave each field its value.
type edits struct {
	*testing.T
	config *rest.Config
	random *rand.Rand
	// values and who are those of each object's fields, as blame calls them.
	values, who map[string]map[string]string
}

var edited = map[string]schema.GroupVersionResource{
	"configmaps/a": {Version: "v1", Resource: "configmaps"}, "configmaps/b": {Version: "v1", Resource: "configmaps"},
	"deployments/d": {Group: "apps", Version: "v1", Resource: "deployments"},
}

func (e *edits) client(user, object string) dynamic.ResourceInterface {
	config := rest.CopyConfig(e.config)
	config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:masters"}}
	return dynamic.NewForConfigOrDie(config).Resource(edited[object]).Namespace("default")
}

// one makes an edit: of a label or an annotation in one of four ways, or of the scale or the status.
func (e *edits) one(i int, object string) {
	e.Helper()
	user := fmt.Sprintf("user-%d", e.random.IntN(20))
	client, name := e.client(user, object), object[strings.Index(object, "/")+1:]
	list := []string{"labels", "annotations"}[e.random.IntN(2)]
	key, value := fmt.Sprintf("k%d", e.random.IntN(6)), fmt.Sprintf("v%d", e.random.IntN(3))
	path := "metadata." + list + "." + key
	patch := fmt.Sprintf(`{"metadata":{%q:{%q:%q}}}`, list, key, value)
	var err error
	switch way := e.random.IntN(6); {
	case way == 0:
		object := parseObject(e.T, fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"metadata":{"name":%q,%q:{%q:%q}}}`,
			edited[object].GroupVersion(), map[bool]string{true: "Deployment", false: "ConfigMap"}[name == "d"], name, list, key, value))
		_, err = client.Apply(e.Context(), name, object, metav1.ApplyOptions{FieldManager: fmt.Sprintf("tool-%d", i), Force: true})
	case way == 1:
		now, getErr := client.Get(e.Context(), name, metav1.GetOptions{})
		if getErr != nil {
			e.Fatal(getErr)
		}
		all := now.GetLabels()
		if list == "annotations" {
			all = now.GetAnnotations()
		}
		if all == nil {
			all = map[string]string{}
		}
		all[key] = value
		if list == "annotations" {
			now.SetAnnotations(all)
		} else {
			now.SetLabels(all)
		}
		_, err = client.Update(e.Context(), now, metav1.UpdateOptions{})
	case way == 2:
		value = ""
		patch = fmt.Sprintf(`{"metadata":{%q:{%q:null}}}`, list, key)
		_, err = client.Patch(e.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	case way == 3 && name == "d":
		path, value = "spec.replicas", fmt.Sprint(1+e.random.IntN(3))
		_, err = client.Patch(e.Context(), name, types.MergePatchType, []byte(`{"spec":{"replicas":`+value+`}}`), metav1.PatchOptions{}, "scale")
	case way == 4 && name == "d":
		path, value = "status.observedGeneration", fmt.Sprint(1+i)
		_, err = client.Patch(e.Context(), name, types.MergePatchType, []byte(`{"status":{"observedGeneration":`+value+`}}`), metav1.PatchOptions{}, "status")
	default:
		_, err = client.Patch(e.Context(), name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{})
	}
	if err != nil {
		e.Fatalf("edit %d of %s: %v", i, object, err)
	}
	if e.values[object][path] == value {
		return
	}
	e.values[object][path], e.who[object][path] = value, user
	if value == "" {
		delete(e.values[object], path)
		delete(e.who[object], path)
	}
}

// blame tells of each field who set it last, after random edits of 20 users.
func TestBlame_EqualsTheLogOfRandomEdits(t *testing.T) {
	t.Parallel()
	onDatabases(t, func(t *testing.T, flags ...string) {
		dir := t.TempDir()
		server := startServer(t, dir, append(flags, "--controllers=")...)
		p := past{t, filepath.Join(dir, "admin.kubeconfig")}
		e := &edits{t, server.config(t), rand.New(rand.NewPCG(1, 2)), map[string]map[string]string{}, map[string]map[string]string{}}
		objects := []string{"configmaps/a", "configmaps/b", "deployments/d"}
		for _, object := range objects {
			content := `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"` + object[len(object)-1:] + `"}}`
			e.values[object], e.who[object] = map[string]string{}, map[string]string{}
			if object == "deployments/d" {
				content = `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"d"},"spec":{"selector":{"matchLabels":{"a":"b"}},"template":` + podOf("Always") + `}}`
				e.values[object]["spec.replicas"], e.who[object]["spec.replicas"] = "1", "first"
			}
			if _, err := e.client("first", object).Create(t.Context(), parseObject(t, content), metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		for i := range 200 {
			e.one(i, objects[e.random.IntN(len(objects))])
		}
		for _, object := range objects {
			var leaves []plugin.Leaf
			if err := json.Unmarshal([]byte(p.run("", nil, "blame", object, "-o", "json")), &leaves); err != nil {
				t.Fatal(err)
			}
			found := map[string]string{}
			for _, leaf := range leaves {
				if leaf.Change != nil {
					found[leaf.Path] = leaf.Change.Who
				}
			}
			for path, want := range e.who[object] {
				if found[path] != want {
					t.Errorf("%s of %s is %q's, want %q's", path, object, found[path], want)
				}
			}
			if len(e.who[object]) < 5 {
				t.Errorf("%s has few fields: %v", object, e.who[object])
			}
		}
	})
}
