package changes

import (
	"context"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage/value"

	"byre/sqlstore"
)

// plugin is a KMS plugin that answers with an error.
type plugin struct {
	value.Transformer
	code codes.Code
}

func (p plugin) TransformFromStorage(context.Context, []byte, value.Context) ([]byte, bool, error) {
	return nil, false, status.Error(p.code, "no")
}

// TestOpen_SaysWhetherAValueMayBeReadLater: a plugin that is away may come back, one that refuses has lost the key.
func TestOpen_SaysWhetherAValueMayBeReadLater(t *testing.T) {
	t.Parallel()
	for code, want := range map[codes.Code]bool{codes.Unavailable: true, codes.DeadlineExceeded: true,
		codes.NotFound: false, codes.InvalidArgument: false} {
		log := &Log{
			Transformers: func(schema.GroupResource) value.Transformer { return plugin{code: code} },
			Prefix:       func(sqlstore.Resource) string { return "secrets" },
		}
		_, err := log.Open(t.Context(), sqlstore.Key{Resource: "secrets", Namespace: "n", Name: "s"},
			[]byte(`"k8s:enc:kms:v2:keeper:AAAA"`))
		if err == nil || apierrors.IsTimeout(err) != want {
			t.Errorf("%s: %v", code, err)
		}
	}
}
