// Package crd serves CustomResourceDefinitions, and for each established one
// the resources that it defines.
package crd
