//! Which words are keys and list items made of?

use std::collections::BTreeSet;
use std::path::Path;

use crate::EvalError;
use crate::dice::Dice;
use crate::file;

/// Nouns, adjectives and verbs. The official benchmark takes those of the Python package `wonderwords`, whose versions
/// differ; ours are built in.
#[derive(Debug, Clone)]
pub struct WordLists {
    nouns: Vec<String>,
    adjectives: Vec<String>,
    /// All words, sorted and without repeats.
    pool: Vec<String>,
}

impl WordLists {
    /// Our own lists.
    #[must_use]
    pub fn built_in() -> Self {
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect();
        Self::new(words(NOUNS), words(ADJECTIVES), words(VERBS))
    }

    /// The three lists of a `wonderwords` package: `nounlist.txt`, `adjectivelist.txt` and `verblist.txt`, a word a line.
    ///
    /// # Errors
    ///
    /// A list is missing, unreadable or has fewer than 50 words.
    pub fn from_folder(folder: &Path) -> Result<Self, EvalError> {
        let list = |name: &str| {
            let path = folder.join(name);
            let text = file::text(&path)?;
            let words: Vec<String> = text
                .lines()
                .map(str::trim)
                .filter(|w| !w.is_empty())
                .map(str::to_owned)
                .collect();
            if words.len() < LEAST_WORDS {
                let what = format!(
                    "the list has {} words, and fewer than {LEAST_WORDS} make no task",
                    words.len()
                );
                return Err(EvalError::Format {
                    path,
                    line: words.len() + 1,
                    what,
                });
            }
            Ok(words)
        };
        Ok(Self::new(
            list("nounlist.txt")?,
            list("adjectivelist.txt")?,
            list("verblist.txt")?,
        ))
    }

    fn new(nouns: Vec<String>, adjectives: Vec<String>, verbs: Vec<String>) -> Self {
        let pool: BTreeSet<String> = nouns.iter().chain(&adjectives).cloned().chain(verbs).collect();
        Self {
            nouns,
            adjectives,
            pool: pool.into_iter().collect(),
        }
    }

    /// An adjective and a noun, joined by a hyphen.
    pub(super) fn key(&self, dice: &mut Dice) -> String {
        let (adjective, noun) = (dice.below(self.adjectives.len()), dice.below(self.nouns.len()));
        format!("{}-{}", self.adjectives[adjective], self.nouns[noun])
    }

    /// How many distinct words the lists have.
    pub(super) fn count(&self) -> usize {
        self.pool.len()
    }

    /// How many distinct words there are with compounds of two nouns.
    pub(super) fn count_with_compounds(&self) -> usize {
        self.pool.len() + self.nouns.len() * self.nouns.len()
    }

    /// Distinct words; compounds of two nouns join in when the lists do not suffice.
    pub(super) fn distinct(&self, count: usize, dice: &mut Dice) -> Vec<String> {
        let limit = if count <= self.count() {
            self.count()
        } else {
            self.count_with_compounds()
        };
        let word = |index: usize| match index.checked_sub(self.pool.len()) {
            None => self.pool[index].clone(),
            Some(pair) => {
                let (first, second) = (pair / self.nouns.len(), pair % self.nouns.len());
                [self.nouns[first].as_str(), &self.nouns[second]].concat()
            }
        };
        dice.distinct(limit, count).into_iter().map(word).collect()
    }
}

/// The solved example of a word list alone takes 40.
const LEAST_WORDS: usize = 50;

const NOUNS: &str = "
    acorn anchor apple apron arch arrow attic axle bakery balcony barley barn barrel basin basket bay beacon bean bear bell
    bench berry blanket boat bolt bonnet book boot bottle boulder bowl branch brass bread brick bridge brook broom brush
    bucket button cabin cable candle canoe canvas canyon carpet cart castle cave cedar cellar chain chair chalk chest chimney
    cider circle clay cliff clock cloth cloud clover coast coat cobweb coin comet compass copper coral corn cottage cotton
    cradle crane creek crown curtain daisy desert desk dial dock dome donkey door drum duck dune eagle easel ember engine
    fabric falcon feather fence fern ferry field finch flag flame flask flint flute forest forge fountain fox frame frost
    garden garlic gate ginger glacier glove goat grain granite grape gravel grove guitar gull hammer harbor harp hat hawk
    hazel hedge helmet herb heron hill hinge hive honey hood hook horn horse hut iris iron island ivory ivy jacket jar jewel
    kettle key kiln kite knot ladder lake lamp lantern larch lark lawn leaf leather lemon lens lever lily linen lizard lodge
    loom magnet mango map maple marble market marsh mast meadow melon mill mint mirror moose morning moss mountain mug needle
    nest nickel notebook oak oar oat ocean olive onion orbit orchard otter oven owl oyster paddle palace panel paper parrot
    path pebble pencil pepper piano pier pigeon pillow pine pipe plank planet plate plough plum pocket pond poppy port potato
    prairie pump quarry quill quilt rabbit raft rail rain raven reed ribbon ridge river robin rocket roof root rope rose
    saddle sail salmon salt sand scarf seal seed shadow shed shell shelf ship shore silk silver sled slope smoke snail snow
    soap spade spark spice spider spoon spring squirrel stable stair star statue steam stone stove straw stream string sugar
    summit sunset swan table tailor tea temple tent thistle thorn thread tide tiger timber tin toad torch tower trail tram
    tray trout trumpet tulip tunnel turtle valley vase vault velvet village vine violet violin wagon wall walnut water wave
    wax weaver wheat wheel whistle willow window wing winter wolf wood wool wren yard yarn zebra";

const ADJECTIVES: &str = "
    able agile amber ample ancient angry arctic awake bitter blank blunt bold bouncy brave brief bright brisk broad bronze
    busy calm careful cheap cheerful chilly clean clear clever close cold common cosy crimson crisp curious curly damp daring
    dark deep dense distant dizzy double dry dull dusty eager early easy elder electric empty endless equal even exact faint
    fair famous fancy fast fierce final fine firm flat floral fluffy foggy formal fragile frail free fresh friendly frozen
    full funny fuzzy gentle giant glad gloomy golden graceful grand grateful great green grim handy happy hard harsh hasty
    heavy helpful hidden high hollow honest huge humble hungry icy idle jolly keen kind large late lazy lean light little
    lively local lonely long loose loud lucky mellow mild misty modern modest moist muddy narrow neat new nimble noble noisy
    odd old open orange pale patient perfect plain pleasant polite proud pure purple quick quiet rapid rare ready red remote
    rich ripe rough round royal rural rusty sandy scarlet secret sharp shiny short shy silent simple sleepy slim slow small
    smooth soft solid sour spare spicy steady steep stiff strange strict strong sturdy subtle sudden sunny sweet swift tall
    tame tender thick thin tidy tiny tired tough tranquil true urban useful vacant vast vivid warm wary weak wide wild windy
    wise wooden young";

const VERBS: &str = "
    accept admire advise agree allow announce answer appear argue arrive ask attach attend avoid bake balance become begin
    believe belong bend borrow bounce bow breathe bring build burn buy call carry carve catch cause change chase choose
    clap climb collect come compare complain consider contain cook copy count cover crawl create cross cry dance decide
    deliver depend describe dig discover dive divide draw dream drink drive drop earn eat enjoy enter escape examine expand
    explain explore fall feed feel fetch fill find finish fix float fly fold follow forget forgive gather give glow grow
    guess guide hang happen hear help hide hold hope hunt hurry imagine improve include invent invite join jump keep kick
    knit know laugh launch lead learn leave lend lift listen live look lose love make march measure meet melt mend mix move
    notice obey observe offer paint pass pause pay peel permit pick plant play polish pour practise praise prefer prepare
    promise protect pull push raise reach read receive remember repair repeat replace reply rescue rest return ride rise roll
    rub run save search sell send settle shake share shine shout sing sink sit sleep slide smile solve speak spend spread
    stand stay steal stir stop stretch study swim take talk teach tell think throw tie touch trade travel trust try turn
    understand visit wait wake walk wander want warn wash watch wear weave weigh whisper win wish wonder work wrap write";

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::WordLists;
    use crate::dice::Dice;

    #[test]
    fn words_are_distinct_with_and_without_compounds() {
        let lists = WordLists::built_in();
        assert!(lists.count() > 700, "{}", lists.count());
        for count in [10, lists.count(), lists.count() + 5000] {
            let words: HashSet<_> = lists.distinct(count, &mut Dice::new(1, "words")).into_iter().collect();
            // A compound can spell another word; that is rare.
            assert!(words.len() >= count - count / 1000, "{} of {count}", words.len());
        }
    }
}
