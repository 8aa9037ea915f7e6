// Package crd serves apiextensions.k8s.io, and for each established
// CustomResourceDefinition the resources that it defines.
//
// It takes the place of k8s.io/apiextensions-apiserver/pkg/apiserver. What a
// definition means (schemas, pruning, defaults, rules, columns, conversion) is
// upstream's code; what this package has of its own is how handlers come and go.
package crd
