package projects

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// Project is a module that ships definitions. Its paths are files and folders of the module;
// a folder means every YAML file below it.
type Project struct {
	Name    string
	Module  string
	Version string
	Sum     string // of the module, as go.sum has it

	Definitions []string
	// Samples are objects that the definitions allow. What the project's own
	// definitions don't define (a Service, say) is left out.
	Samples []string
	// Unfit are the names of samples that the project's own definitions, of the
	// same version, refuse.
	Unfit []string
	// Malformed are objects that are to be refused, where the project ships some.
	// testdata/NAME.yaml has others.
	Malformed []string
	// Refusals are parts of the server's messages about malformed objects.
	Refusals []string
}

// All are the projects.
var All = []Project{{
	Name:   "gateway-api",
	Module: "sigs.k8s.io/gateway-api", Version: "v1.3.0", Sum: "h1:q6okN+/UKDATola4JY7zXzx40WO4VISk7i9DIfOvr9M=",
	Definitions: []string{"config/crd/experimental"},
	Samples:     []string{"examples"},
	Malformed:   []string{"hack/invalid-examples"},
	Refusals: []string{
		"spec.listeners: Invalid value: Listener name must be unique within the Gateway",
		"spec.listeners: Invalid value: hostname must not be specified for protocols ['TCP', 'UDP']",
		"spec.listeners[0].port: Invalid value: 123456789: spec.listeners[0].port in body should be less than or equal to 65535",
		"spec.to: Required value",
	},
}, {
	Name:   "cert-manager",
	Module: "github.com/cert-manager/cert-manager", Version: "v1.18.2",
	Sum:         "h1:H2P75ycGcTMauV3gvpkDqLdS3RSXonWF2S49QGA1PZE=",
	Definitions: []string{"deploy/crds"},
	Samples:     []string{"test/fixtures/cert-manager-resources.yaml"},
	Refusals: []string{
		`Certificate.cert-manager.io "nobody-signs-it" is invalid: spec.issuerRef: Required value`,
		`spec.privateKey.algorithm: Unsupported value: "ROT13": supported values: "RSA", "ECDSA", "Ed25519"`,
		`strict decoding error: unknown field "spec.acme.unknown"`,
	},
}, {
	Name:   "cluster-api",
	Module: "sigs.k8s.io/cluster-api", Version: "v1.10.4", Sum: "h1:5mdyWLGbbwOowWrjqM/J9N600QnxTohu5J1/1YR6g7c=",
	Definitions: []string{
		"config/crd/bases", "bootstrap/kubeadm/config/crd/bases", "controlplane/kubeadm/config/crd/bases",
		"cmd/clusterctl/config/crd/bases",
	},
	Samples: []string{"cmd/clusterctl/client/cluster/assets/topology-test"},
	Unfit:   []string{"control-plane"},
	Refusals: []string{
		`spec.clusterNetwork.apiServerPort: Invalid value: "string"`,
		"spec.clusterName: Required value",
		"spec.poolRef: Required value",
		`spec.format: Unsupported value: "punched-cards": supported values: "cloud-config", "ignition"`,
	},
}, {
	Name:   "prometheus-operator",
	Module: "github.com/prometheus-operator/prometheus-operator", Version: "v0.84.0",
	Sum:         "h1:XXm7lKizTnnxeSwI01wjNAapKzw/4XAPdpcZqjRKgRU=",
	Definitions: []string{"example/prometheus-operator-crd-full"},
	Samples:     []string{"example"},
	Unfit:       []string{"", "servicemonitor-example"}, // "" are without a name
	Refusals: []string{
		`spec.groups[0].rules[0].for: Invalid value: "5 minutes": spec.groups[0].rules[0].for in body should match`,
		`spec.groups[1]: Duplicate value: {"name":"a"}`,
		"spec.selector: Required value",
	},
}, {
	Name:   "argo-rollouts",
	Module: "github.com/argoproj/argo-rollouts", Version: "v1.8.3", Sum: "h1:blbtQva4IK9r6gFh+dWkCrLnFdPOWiv9ubQYu36qeaA=",
	Definitions: []string{"manifests/crds"},
	Samples:     []string{"examples"},
	Refusals: []string{
		`spec.replicas: Invalid value: "string": spec.replicas in body must be of type integer`,
		"spec.templates: Required value",
		"spec.metrics[0].name: Required value",
	},
}, {
	Name:   "knative-serving",
	Module: "knative.dev/serving", Version: "v0.46.0", Sum: "h1:OF4Jt+6xY4nw0lFb9G3rEEJPZcNx1k2Kf1IhhJp/Rg4=",
	Definitions: []string{"config/core/300-resources"},
	Samples:     []string{"test/test_images", "test/performance"},
	Refusals: []string{
		`spec.template.spec.timeoutSeconds: Invalid value: "string"`,
		"spec.ref.name: Required value",
		`strict decoding error: unknown field "spec.template.spec.containers[0].colour"`,
	},
}}

// Fetch asks the go command for the module and returns where its files are: in
// the module cache, read-only.
func (p Project) Fetch(ctx context.Context) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "mod", "download", "-json", p.Module+"@"+p.Version)
	// Outside of any module: Fetch compares the sum with the one in All, not with a go.sum.
	cmd.Dir = os.TempDir()
	cmd.Env = append(os.Environ(), "GOWORK=off", "GONOSUMDB="+p.Module)
	var out, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problems
	err := cmd.Run()
	var got struct{ Dir, Sum, Error string }
	if e := json.Unmarshal(out.Bytes(), &got); err != nil || e != nil {
		return "", fmt.Errorf("fetching %s: %w: %s%s", p.Module, err, got.Error, strings.TrimSpace(problems.String()))
	}
	if got.Sum != p.Sum {
		return "", fmt.Errorf("%s@%s has the sum %s, not %s", p.Module, p.Version, got.Sum, p.Sum)
	}
	return got.Dir, nil
}
