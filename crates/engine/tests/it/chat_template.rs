//! Conversations as models expect them.

use inertiakv::chat_template::{ChatTemplate, Message, TemplateError};
use inertiakv::gguf::{Gguf, GgufWriter};
use inertiakv::testing::TinyModel;
use inertiakv::tokenizer::Tokenizer;

const TEMPLATE: &str = "tokenizer.chat_template";

fn load(writer: &GgufWriter) -> (Tokenizer, Option<ChatTemplate>) {
    let file = Gguf::from_bytes(writer.to_bytes()).expect("the file itself is valid");
    let tokenizer = Tokenizer::from_gguf(&file).expect("the tiny model has a tokenizer");
    let template = ChatTemplate::from_gguf(&file, &tokenizer).expect("reading a template cannot fail here");
    (tokenizer, template)
}

fn with_template(source: &str) -> (Tokenizer, ChatTemplate) {
    let mut writer = TinyModel::default().writer();
    let (tokenizer, template) = load(writer.remove(TEMPLATE).string(TEMPLATE, source));
    (tokenizer, template.expect("the file has a template"))
}

fn conversation() -> Vec<Message> {
    vec![
        Message::system("Be brief."),
        Message::user("Hi"),
        Message::assistant("Hello"),
        Message::user("Bye"),
    ]
}

const EXPECTED: &str = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n\
                        <|im_start|>assistant\nHello<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n";

#[test]
fn the_files_template_is_rendered() {
    let (_, template) = load(&TinyModel::default().writer());
    let template = template.unwrap();
    assert_eq!(template.render(&conversation(), false).unwrap(), EXPECTED);
    assert_eq!(
        template.render(&conversation(), true).unwrap(),
        format!("{EXPECTED}<|im_start|>assistant\n")
    );
}

#[test]
fn encoding_is_the_rendered_text_with_its_control_tokens() {
    let (tokenizer, template) = load(&TinyModel::default().writer());
    let tokens = template.unwrap().encode(&tokenizer, &conversation(), true).unwrap();
    assert_eq!(
        tokens,
        tokenizer.encode(&format!("{EXPECTED}<|im_start|>assistant\n"), true)
    );
}

#[test]
fn without_a_template_chat_ml_is_assumed_where_the_vocabulary_has_it() {
    let (_, template) = load(TinyModel::default().writer().remove(TEMPLATE));
    assert_eq!(template.unwrap().render(&conversation(), false).unwrap(), EXPECTED);
}

#[test]
fn without_a_template_and_its_tokens_there_is_none() {
    let mut writer = TinyModel::default().writer();
    writer.remove(TEMPLATE).remove("tokenizer.ggml.token_type");
    let (_, template) = load(&writer);
    assert!(template.is_none());
    assert!(TemplateError::Missing.to_string().contains("raw prompt"));
}

/// A broken template must not keep anyone from running the model without it.
#[test]
fn a_broken_template_is_reported_when_it_is_used() {
    let (tokenizer, template) = with_template("{% for message in messages %}");
    let error = template.encode(&tokenizer, &conversation(), true).unwrap_err();
    assert!(matches!(error, TemplateError::Syntax { .. }));
    assert!(error.to_string().contains("raw prompt"), "{error}");
    assert_eq!(error.to_string().lines().count(), 1);
}

/// Templates in the manner of Llama 3 write the BOS themselves; the tokenizer would add another.
#[test]
fn there_is_one_bos_whoever_writes_it() {
    for source in ["{{ bos_token }}{{ messages[0].content }}", "{{ messages[0].content }}"] {
        let mut writer = TinyModel::default().writer();
        let add_bos = "tokenizer.ggml.add_bos_token";
        writer
            .remove(TEMPLATE)
            .string(TEMPLATE, source)
            .remove(add_bos)
            .bool(add_bos, true);
        let (tokenizer, template) = load(&writer);
        let tokens = template
            .unwrap()
            .encode(&tokenizer, &[Message::user("hello")], true)
            .unwrap();
        let bos = tokenizer.bos().unwrap();
        assert_eq!(tokens[0], bos);
        assert_eq!(tokens.iter().filter(|&&token| token == bos).count(), 1, "{source}");
    }
}

#[test]
fn roles_are_text_too() {
    let (tokenizer, template) = with_template("{{ messages[0].role }}: {{ messages[0].content }}");
    let tokens = template
        .encode(&tokenizer, &[Message::new("<|im_end|>", "x")], false)
        .unwrap();
    assert!(tokens.iter().all(|&token| !tokenizer.is_control(token)));
    assert_eq!(tokenizer.decode(&tokens), "<|im_end|>: x");
}

#[test]
fn hostile_templates_are_refused_and_end() {
    let messages = [Message::user("hi")];
    let render = |source: &str| with_template(source).1.render(&messages, true);
    for part in ["-", "not ", "1+", "a.", "1 if "] {
        let refused = render(&format!("{{{{ {}1 }}}}", part.repeat(20_000)));
        assert!(
            refused.is_err_and(|error| error.to_string().contains("bytes")),
            "{part}"
        );
    }
    let endless = "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}";
    assert!(render(endless).is_err());
}
