package crd

import (
	"context"
	"encoding/json"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	client "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"byre/crd/instances"
)

// statusClient is the client of the controllers. Invariant: it writes only what they
// change, the status and the finalizers. They work on stripped definitions: an update
// would remove the schemas.
type statusClient struct {
	client.CustomResourceDefinitionsGetter
}

func (c statusClient) CustomResourceDefinitions() client.CustomResourceDefinitionInterface {
	return statusWriter{c.CustomResourceDefinitionsGetter.CustomResourceDefinitions()}
}

type statusWriter struct {
	client.CustomResourceDefinitionInterface
}

// patchOperation is an operation of a JSON patch (RFC 6902).
type patchOperation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// UpdateStatus patches the status and the finalizers. It fails with a conflict where an
// update would.
func (w statusWriter) UpdateStatus(ctx context.Context, crd *apiextensionsv1.CustomResourceDefinition, options metav1.UpdateOptions) (*apiextensionsv1.CustomResourceDefinition, error) {
	finalizers := crd.Finalizers
	if finalizers == nil {
		finalizers = []string{}
	}
	patch, err := json.Marshal([]patchOperation{
		{"add", "/metadata/uid", crd.UID},
		{"add", "/metadata/resourceVersion", crd.ResourceVersion},
		{"add", "/metadata/finalizers", finalizers},
		{"add", "/status", crd.Status},
	})
	if err != nil {
		return nil, err
	}
	written, err := w.Patch(ctx, crd.Name, types.JSONPatchType, patch,
		metav1.PatchOptions{DryRun: options.DryRun, FieldManager: options.FieldManager, FieldValidation: options.FieldValidation}, "status")
	if err != nil {
		return nil, err
	}
	instances.Strip(written)
	return written, nil
}
