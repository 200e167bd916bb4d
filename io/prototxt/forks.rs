//! Fields that Intel's fork of Caffe and its relatives for detection have, and BVLC Caffe has not. They change what is
//! computed, so they are refused; that they are no slips of the keyboard can be said all the same.

/// Messages with their fields; what serves tasks, such as detection, and what rewrites networks for speed.
const FIELDS: [(&str, &[&str]); 13] = [
    (
        "LayerParameter",
        &[
            "annotated_data_param",
            "box_annotator_ohem_param",
            "detection_evaluate_param",
            "detection_output_param",
            "eval_detection_param",
            "multibox_loss_param",
            "norm_param",
            "permute_param",
            "prior_box_param",
            "psroi_pooling_param",
            "quantization_param",
            "region_loss_param",
            "reorg_param",
            "roi_pooling_param",
            "smooth_l1_loss_param",
            "spatial_dropout_param",
            "split_param",
            "video_data_param",
        ],
    ),
    (
        "TransformationParameter",
        &[
            "bgr2rgb",
            "crop_h",
            "crop_w",
            "distort_param",
            "emit_constraint",
            "expand_param",
            "flow",
            "noise_param",
            "pad",
        ],
    ),
    (
        "BatchNormParameter",
        &["bias_filler", "bias_term", "filler", "relu", "stats_batch_size", "use_weight_bias"],
    ),
    ("ConvolutionParameter", &["coeff", "fusion_type", "negative_slope", "relu"]),
    ("InnerProductParameter", &["negative_slope", "relu"]),
    ("PoolingParameter", &["avg_include_pad", "axis", "kernel_size_3d", "pad_3d", "stride_3d"]),
    ("LossParameter", &["label_smoothing", "pre_fixed_normalizer"]),
    ("FillerParameter", &["scale"]),
    ("ConcatParameter", &["per_fla_fuse"]),
    ("DataParameter", &["side"]),
    ("ImageDataParameter", &["min_height", "min_width"]),
    ("ReLUParameter", &["fuse"]),
    ("ReshapeParameter", &["pixelshuffler"]),
];

/// Whether a fork has the field `name` in `message`.
pub(super) fn have(message: &str, name: &str) -> bool {
    FIELDS.iter().any(|(known, fields)| *known == message && fields.contains(&name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::descriptor;

    #[test]
    fn no_field_of_the_schema_is_among_them() {
        for (message, fields) in FIELDS {
            let message = descriptor(message);
            assert!(fields.iter().all(|name| message.get_field_by_name(name).is_none()), "{message:?}");
        }
        assert!(have("LayerParameter", "roi_pooling_param") && !have("LayerParameter", "botom"));
    }
}
